"""The path from a request to a job that is stored and sent: admission, idempotency and the writer.

Callers use `jobs` for one job and `bulk` for many.
"""
