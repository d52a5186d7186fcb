"""The service without its API. Each package says what it owns; what it may import stands below it in the layers of
pyproject.toml."""
