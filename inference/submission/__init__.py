"""From a request to a stored and sent job: admission, idempotency, the writer, and `jobs` and `bulk`, its two faces."""
