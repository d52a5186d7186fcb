"""What the operator's pages ask of a database with a million finished jobs."""
