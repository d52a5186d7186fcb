"""What happened, over time: counted where it happens, in rows that are few, and kept for a year."""
