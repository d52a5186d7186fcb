"""Engines run models. Torch is imported below this package only: in pool children, in what forks them, and in the
processes that `manage.py tune` measures."""
