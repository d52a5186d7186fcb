"""Below Django: bodies whose length is not announced. Django takes a chunked body for an empty one."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any

from django.conf import settings

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
READ = 65_536


class ChunkedBodies:
    """Reads a chunked body up to one byte over the limit, which is then refused as any body over it is."""

    def __init__(self, application: Application) -> None:
        self.application = application

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("HTTP_TRANSFER_ENCODING"):
            body = _read(environ["wsgi.input"], settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1)
            environ.update({"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))})
        return self.application(environ, start_response)


def _read(stream: Any, limit: int) -> bytes:
    body = b""
    while len(body) < limit and (part := stream.read(min(READ, limit - len(body)))):
        body += part
    return body
