"""What the web process keeps of the bodies of requests that are over, where the collector seldom runs: nothing."""

import contextlib
import gc
import json
import logging
import sqlite3
import tracemalloc
from unittest.mock import patch

from django.db import connection
from django.http import HttpResponse
from django.test import TestCase, override_settings

from api.server.unread_body_reader import UnreadBodyReader
from inference.submission import jobs
from project.handler import Handler

TEXT = "x" * 1_000_000
POSTS = 6
JSON = json.dumps({"model": "embeddings", "inputs": TEXT}).encode()
FORM = f"username={TEXT}&csrfmiddlewaretoken={'x' * 64}".encode()
FORM_TYPE = "application/x-www-form-urlencoded"
COOKIE = f"csrftoken={'x' * 32}"  # so that the form is read, for its token


class Stream:
    """As the server's: what is read of it, it has no more."""

    def __init__(self, body: bytes) -> None:
        self.left = memoryview(body)

    def read(self, size: int) -> bytes:
        part, self.left = bytes(self.left[:size]), self.left[size:]
        return part

    readline = read


@override_settings(API_KEY_REQUIRED=False)
class GarbageTests(TestCase):
    def setUp(self) -> None:
        self.application = UnreadBodyReader(Handler())
        gc.disable()
        self.addCleanup(gc.enable)

    def post(self, path: str, body: bytes, **environ: str) -> None:
        wsgi_environ = {
            "REQUEST_METHOD": "POST", "PATH_INFO": path, "SERVER_NAME": "localhost", "SERVER_PORT": "80",
            "CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(body)), "wsgi.input": Stream(body),
            "wsgi.url_scheme": "http", **environ,
        }  # fmt: skip
        answer = self.application(wsgi_environ, lambda *head: None)
        with contextlib.closing(answer) if isinstance(answer, HttpResponse) else contextlib.nullcontext():
            b"".join(answer)

    def assert_nothing_kept(self, path: str, body: bytes, **environ: str) -> None:
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        self.post(path, body, **environ)  # what is loaded then stays, and the writer holds what it wrote last
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(POSTS):
            self.post(path, body, **environ)
        after, most = tracemalloc.get_traced_memory()
        self.assertGreater(most, len(body))
        self.assertLess(after - before, POSTS // 2 * len(body))  # of the last one, the writer may have let go by now

    def test_nothing_is_kept_of_a_request_s_body(self) -> None:
        for path in ("/v1/jobs", "/v1/jobs/bulk", "/v1/models/nobody"):
            with self.subTest(path):
                self.assert_nothing_kept(path, JSON)

    def test_nothing_is_kept_of_a_body_that_could_not_be_stored(self) -> None:
        def fail(*args: object) -> None:
            with connection.wrap_database_errors:
                raise sqlite3.OperationalError("away")

        log = logging.getLogger("api.errors.problems")
        with patch.object(jobs, "submit", fail), patch.object(log, "disabled", True):  # a captured line holds its error
            self.assert_nothing_kept("/v1/jobs", JSON)

    def test_nothing_is_kept_of_a_page_s_form(self) -> None:
        for path in ("/admin/login/", "/admin/", "/admin/nope"):
            with self.subTest(path):
                self.assert_nothing_kept(path, FORM, CONTENT_TYPE=FORM_TYPE, HTTP_COOKIE=COOKIE)

    def test_nothing_is_kept_of_a_form_in_chunks(self) -> None:
        self.assert_nothing_kept(
            "/admin/login/", FORM, CONTENT_TYPE=FORM_TYPE, HTTP_COOKIE=COOKIE, HTTP_TRANSFER_ENCODING="chunked"
        )
