"""Generation by the step: rows join a running batch, and leave it as they end."""
