"""A WSGI layer below Django for bodies without an announced length, for unread bodies, and for those that stall."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.types import InputStream

from django.utils.http import parse_header_parameters

from api.server.body_limits import MOST_READ, UPLOAD, BodyStream, UploadRefused, find_body_limit, is_file_upload

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
READ = 65_536


class UnreadBodyReader:
    """A WSGI application that reads every body to its end before it returns the answer.

    The server closes a connection that has unread bytes. That would happen during the client's next request, or while
    the client still sends, so that it never reads, for example, that its key is wrong.

    A chunked body, which Django takes for an empty one, is read up to one byte over the limit. It is then refused like
    any body over the limit. The view of files reads its own bodies, in pieces. The rest of a body over twice the limit
    is left unread. A body that there is no room to read is left unread too, and the middleware refuses its request.
    """

    def __init__(self, application: Application) -> None:
        self.application = application
        self._reads = threading.Semaphore(MOST_READ)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        _drop_unreadable_parameters(environ)
        limit = find_body_limit(environ)
        stream = environ[UPLOAD] = environ["wsgi.input"] = BodyStream(environ["wsgi.input"], self._reads)
        if environ.get("HTTP_TRANSFER_ENCODING") and not is_file_upload(environ):
            with contextlib.suppress(UploadRefused):
                _unchunk(environ, limit + 1)
        answer = self.application(environ, start_response)
        # Reference cycles of pages would hold the body until garbage is collected.
        del environ["wsgi.input"], environ[UPLOAD]
        length = int(environ.get("CONTENT_LENGTH") or 0)
        # A client with an Expect header waits for an answer first, and has sent no body.
        if 0 < length <= 2 * limit and "HTTP_EXPECT" not in environ:
            try:
                with contextlib.suppress(UploadRefused):
                    for _ in _read_parts(stream, 2 * limit):
                        pass
            except BaseException:
                if close := getattr(answer, "close", None):
                    close()  # the server, which would close the answer, never gets it
                raise
        return answer


def _drop_unreadable_parameters(environ: dict[str, Any]) -> None:
    """Leave the media type of a Content-Type whose parameters name an encoding that Python does not know.

    Django would raise as it makes the request, before there is anybody to answer.
    """
    content_type = environ.get("CONTENT_TYPE", "")
    try:
        if "*" in content_type:
            parse_header_parameters(content_type)
    except ValueError:
        environ["CONTENT_TYPE"] = content_type.partition(";")[0]


def _unchunk(environ: dict[str, Any], limit: int) -> None:
    body = b"".join(_read_parts(environ["wsgi.input"], limit))
    environ.update({"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))})


def _read_parts(stream: InputStream, limit: int) -> Iterable[bytes]:
    """Yield the rest of a body in parts, up to `limit` bytes."""
    while limit > 0 and (part := stream.read(min(READ, limit))):
        limit -= len(part)
        yield part
