"""Thin and alike: read the request, have `inference` do what it asks for, answer."""
