"""The limits on the bodies of requests: how many bytes one may have, and how many are read at once.

The second limit is there as the server cannot end a thread's wait for a client.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from django.conf import settings

UPLOAD = "api.upload"  # key of a request's `BodyStream` in the WSGI environment
MOST_READ = 100  # bodies that are read at once: of the server's 512 threads 400 may wait for jobs, and probes need some

FILES = re.compile(r"/(?:openai/)?v1/files/?")  # the addresses that receive files, whose bodies are read in pieces
FORM = 65_536  # bytes of a form beside those of its file


def is_file_upload(environ: Mapping[str, Any]) -> bool:
    return environ.get("REQUEST_METHOD") == "POST" and FILES.fullmatch(environ.get("PATH_INFO", "")) is not None


def find_body_limit(environ: Mapping[str, Any]) -> int:
    """Return how many bytes the body of this request may have."""
    limit: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    return settings.MAX_FILE_BYTES + FORM if is_file_upload(environ) else limit


class UploadRefused(OSError):
    """The error of a read for which there is no room. Frameworks take it for a connection that is lost."""


def is_refused_as_overloaded(environ: Mapping[str, Any]) -> bool:
    """Return True if the body of this request, or a part of it, was not read because there was no room."""
    upload = environ.get(UPLOAD)
    return upload is not None and upload.is_refused


class BodyStream:
    """The body of a request, which is read while there is room for a read. `is_refused` is True once there was none."""

    def __init__(self, stream: Any, reads: threading.Semaphore) -> None:
        self._stream, self._reads = stream, reads
        self.is_refused = False

    def read(self, size: int = -1) -> bytes:
        return self._read_if_room(self._stream.read, size)

    def readline(self, size: int = -1) -> bytes:
        return self._read_if_room(self._stream.readline, size)

    def readlines(self, hint: int = -1) -> list[bytes]:
        return list(self)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def _read_if_room(self, read: Callable[[int], bytes], size: int) -> bytes:
        """Call `read` with `size`. Raises `UploadRefused` if there is no room for another read, or was none before."""
        if self.is_refused or not self._reads.acquire(blocking=False):
            self.is_refused = True
            raise UploadRefused("too many bodies are being received")
        try:
            return read(size)
        finally:
            self._reads.release()
