"""The path from a request to a job that is stored and sent: checks, admission and idempotency.

Callers use `jobs` for one job and `bulk` for many.
"""
