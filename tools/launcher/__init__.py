"""The launcher of `manage.py up`, which runs the programs of one machine, restarts them, and ends with all of them."""
