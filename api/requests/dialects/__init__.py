"""Requests in the words of other servers, made into submissions of ours."""
