"""Values of every kind: priorities, UUIDs from text, and words for values in errors. It imports no other package."""
