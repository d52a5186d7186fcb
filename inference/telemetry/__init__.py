"""The logs and spans of the programs, and the descriptions of exceptions that quote no data.

The package imports `errors` and `connection_retries` only.
"""
