"""Generation step by step: rows join a running batch, and leave it as they end."""
