"""From a request to a stored and sent job: admission, idempotency, the writer, and `jobs`, the face for Python.
Imports what lies below it, never workers or engines.
"""
