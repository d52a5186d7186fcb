"""Below Django: bodies whose length is not announced, bodies that nobody has read, and bodies that do not come."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable
from typing import Any

from django.conf import settings

from api.server.uploads import UPLOAD, Refused, Upload

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
READ = 65_536


class WholeBodies:
    """Reads every body to its end before the request is answered. The server closes a connection that has unread bytes:
    under the client's next request, or while it still sends and then never hears that its key is wrong.

    A chunked body, which Django takes for an empty one, is read up to one byte over the limit and then refused as any
    body over it is. Of bodies over twice the limit the rest is left unread, and so is a body that there is no room to
    read: the middleware refuses its request."""

    def __init__(self, application: Application) -> None:
        self.application = application

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        stream = environ[UPLOAD] = environ["wsgi.input"] = Upload(environ["wsgi.input"])
        if environ.get("HTTP_TRANSFER_ENCODING"):
            with contextlib.suppress(Refused):
                _unchunk(environ, limit + 1)
        answer = self.application(environ, start_response)
        # Pages refer to themselves, and would hold the body until garbage is collected.
        del environ["wsgi.input"], environ[UPLOAD]
        length = int(environ.get("CONTENT_LENGTH") or 0)
        # A client that expects an answer first has sent nothing.
        if 0 < length <= 2 * limit and "HTTP_EXPECT" not in environ:
            try:
                with contextlib.suppress(Refused):
                    for _ in _parts(stream, 2 * limit):
                        pass
            except BaseException:
                if close := getattr(answer, "close", None):
                    close()  # the server, which would, never gets it
                raise
        return answer


def _unchunk(environ: dict[str, Any], limit: int) -> None:
    body = b"".join(_parts(environ["wsgi.input"], limit))
    environ.update({"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))})


def _parts(stream: Any, limit: int) -> Iterable[bytes]:
    """What is left of a body, up to `limit` bytes of it."""
    while limit > 0 and (part := stream.read(min(READ, limit))):
        limit -= len(part)
        yield part
