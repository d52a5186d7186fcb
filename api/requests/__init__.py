"""What comes in: bodies, fields, queries, all bounded before they are unfolded."""
