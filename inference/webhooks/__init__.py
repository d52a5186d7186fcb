"""Signed notices to clients' servers that a job is finished, delivered from the rows of the notices."""
