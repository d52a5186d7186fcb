"""Values of every kind: UUIDs read from text, and words for values in errors. The package imports no other one."""
