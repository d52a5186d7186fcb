"""The measurements of `manage.py tune`: it measures a model on this machine, and says what to write in models.toml."""
