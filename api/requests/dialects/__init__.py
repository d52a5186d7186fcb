"""Requests in the dialects of other servers, read into submissions of this service."""
