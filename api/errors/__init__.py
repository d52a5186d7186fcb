"""Answers for errors: as RFC 9457 defines them, and in the forms that clients of other servers read."""
