"""Bodies that are being received, each by a thread of this process that can do nothing else meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

MOST_READ = 100  # bodies at once: of the server's 512 threads 400 may wait for jobs, and probes need some

_reads: set[Upload] = set()


class Upload:
    """The stream of a request's body, which is among the reads of this process while a thread waits for it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        return self._wait(self._stream.read, size)

    def readline(self, size: int = -1) -> bytes:
        return self._wait(self._stream.readline, size)

    def _wait(self, read: Callable[[int], bytes], size: int) -> bytes:
        _reads.add(self)
        try:
            return read(size)
        finally:
            _reads.discard(self)


def no_thread_is_free() -> bool:
    """Return whether so many bodies are being read that another one is not: the server cannot end a read."""
    return len(_reads) >= MOST_READ


def has_body(environ: Mapping[str, Any]) -> bool:
    return bool(environ.get("HTTP_TRANSFER_ENCODING")) or environ.get("CONTENT_LENGTH", "0") not in ("", "0")
