"""Engines run models. Torch is imported below this package only, and in pool children and what forks them only."""
