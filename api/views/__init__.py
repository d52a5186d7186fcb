"""Thin and alike: read the request, make one call of `inference.jobs`, answer."""
