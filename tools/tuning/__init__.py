"""`manage.py tune`: measures a model on this machine, and says what to write in models.toml."""
