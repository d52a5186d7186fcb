"""The WSGI handler, which is between the web server and Django."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.db import connection

from api.server.middleware import match_api_path, release_body


class Handler(WSGIHandler):
    """Django's handler for pages, with a shorter way for requests of the API.

    Around each request Django's handler sends signals, whose receivers look after connections, caches and addresses.
    That costs a third of a short answer. The API's requests need only the check of the connection, which is done here.
    """

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        path = environ["PATH_INFO"].encode("iso-8859-1").decode(errors="replace")  # WSGI passes UTF-8 as Latin-1
        if settings.DEBUG or not match_api_path(path):
            return super().__call__(environ, start_response)
        request = self.request_class(environ)
        answer: Any = self.get_response(request)
        if answer.streaming:
            release_body(request)  # Django's answer holds its request until the stream has ended
        if connection.connection is not None:
            connection.close_if_unusable_or_obsolete()
        start_response(f"{answer.status_code} {answer.reason_phrase}", list(answer.items()))
        return answer if answer.streaming else [answer.content]
