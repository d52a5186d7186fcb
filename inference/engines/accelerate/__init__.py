"""Shortcuts through a model, installed by `install` and left out where an answer would change."""
