"""Thin and alike: read the request, make one call of `inference.submission.jobs`, answer."""
