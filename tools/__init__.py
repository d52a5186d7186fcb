"""Commands for people: `manage.py up` runs the whole service on one machine, `manage.py tune` measures a model."""
