"""What serves in place of Django's own handler answers as that does."""

import io
import json
from typing import Any

from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.test import TestCase, override_settings

from project.handler import Handler

DIFFERENT = ("Set-Cookie", "Expires")  # from request to request: a token, and the time to the second
BODY = json.dumps({"model": "embeddings", "inputs": 7}).encode()


@override_settings(API_KEY_REQUIRED=False, SECURE_HSTS_SECONDS=60, SECURE_PROXY_SSL_HEADER=("HTTP_X_SCHEME", "https"))
class HandlerTests(TestCase):
    def test_the_same_answers_as_djangos_own(self) -> None:
        for method, path, body in (
            ("GET", "/healthz", b""),
            ("HEAD", "/v1/models/", b""),
            ("POST", "/v1/jobs", BODY),
            ("PUT", "/v1/jobs", b""),
            ("GET", "/nothing", b""),
            ("GET", "/v1/models?unknown=1", b""),
            ("GET", "/admin/login/", b""),
            ("GET", "/static/admin/css/base.css", b""),
        ):
            for scheme in ("http", "https"):
                with self.subTest(method=method, path=path, scheme=scheme):
                    own = self.request(Handler(), method, path, body, scheme)
                    self.assertEqual(own, self.request(WSGIHandler(), method, path, body, scheme))
                    self.assertEqual(own[1]["X-Content-Type-Options"], "nosniff")
                    self.assertEqual("Strict-Transport-Security" in own[1], scheme == "https")

    def test_the_body_of_a_request_goes_before_its_stream_ends(self) -> None:
        requested: list[HttpRequest] = []

        class Streaming(Handler):
            def get_response(self, request: HttpRequest) -> HttpResponseBase:
                requested.append(request)
                assert request.body == BODY
                return StreamingHttpResponse(iter([b"a"]))

        self.request(Streaming(), "POST", "/v1/jobs", BODY, "http")
        self.assertNotIn(BODY, vars(requested[0]).values())

    def request(
        self, handler: WSGIHandler, method: str, path: str, body: bytes, scheme: str
    ) -> tuple[str, dict[str, str], bytes]:
        path, _, query = path.partition("?")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query, "SERVER_NAME": "localhost",
            "SERVER_PORT": "80", "CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(body)),
            "HTTP_X_REQUEST_ID": "told", "HTTP_X_SCHEME": scheme, "wsgi.input": io.BytesIO(body),
            "wsgi.url_scheme": "http",
        }  # fmt: skip
        head: list[Any] = []
        answer: Any = handler(environ, lambda *arguments: head.extend(arguments))  # type: ignore[arg-type]  # as a server's
        content = b"".join(answer)
        status, headers = head
        shown = {name: value for name, value in headers if name not in DIFFERENT}
        return status, shown, b"" if path.startswith("/admin") else content
