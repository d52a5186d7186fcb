"""A body that nobody has read is read to its end without a connection of the pool: its client may send it slowly."""

import io
from typing import Any
from unittest.mock import Mock, patch

from django.contrib.auth import get_user_model
from django.core.handlers.wsgi import WSGIHandler
from django.db import connection
from django.test import override_settings

from api.models import ApiKey
from api.server import unread_body_reader
from api.server.unread_body_reader import UnreadBodyReader
from inference.models import Job
from inference.store import connections
from tests.api.base import ApiTestCase


class UnreadBodyTests(ApiTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.events: list[str] = []

    def read(self, size: int) -> bytes:
        self.events.append("read")
        return b""

    def record_statement(self, execute: Any, *call: Any) -> Any:
        self.events.append("asked")
        return execute(*call)

    def send(self, path: str, key: str, **headers: str) -> None:
        environ = {
            "REQUEST_METHOD": "POST", "PATH_INFO": path, "HTTP_HOST": "localhost", "SERVER_NAME": "localhost",
            "SERVER_PORT": "80", "HTTP_AUTHORIZATION": f"Bearer {key}", "CONTENT_LENGTH": "10",
            "wsgi.input": Mock(read=self.read), "wsgi.url_scheme": "http", "wsgi.errors": io.StringIO(),
            **headers,
        }  # fmt: skip
        given_back = patch.object(connections, "release_connection", lambda: self.events.append("given back"))
        with given_back, connection.execute_wrapper(self.record_statement):
            UnreadBodyReader(WSGIHandler())(environ, self.start)

    def start(self, status: str, headers: Any) -> None:
        self.status = status

    def assert_given_back(self) -> None:
        events = "".join(event[0] for event in self.events)
        self.assertRegex(events, "ag+r$", "asked, given back, read")

    def test_a_type_with_parameters_in_an_unknown_encoding_has_none(self) -> None:
        for given, left in (
            ("application/json; x*=bogus''y", "application/json"),
            ("application/json; x*=utf-8''y", "application/json; x*=utf-8''y"),
            ("application/json; charset=utf-8", "application/json; charset=utf-8"),
        ):
            application = UnreadBodyReader(lambda environ, _: [environ["CONTENT_TYPE"].encode()])
            environ = {"wsgi.input": io.BytesIO(), "CONTENT_TYPE": given}
            self.assertEqual(b"".join(application(environ, lambda *_: None)).decode(), left)

    @override_settings(API_KEY_REQUIRED=True)
    def test_of_who_has_no_valid_key(self) -> None:
        self.send("/v1/jobs", "inf_wrong")
        self.assert_given_back()

    def test_of_a_request_that_takes_none(self) -> None:
        ada = get_user_model().objects.create_user("ada")
        job = Job.objects.create(model="echo", inputs="x", owner=ada)
        self.send(f"/v1/jobs/{job.id}/cancel", ApiKey.objects.issue_key(owner=ada)[1])
        self.assert_given_back()

    def test_an_answer_to_a_body_that_is_cut_off_is_closed(self) -> None:
        class Answer(list[bytes]):
            is_closed = False

            def close(self) -> None:
                self.is_closed = True

        def read(size: int) -> bytes:
            raise ConnectionResetError

        answer = Answer()
        stream = type("Stream", (), {"read": staticmethod(read)})
        with self.assertRaises(ConnectionResetError):
            UnreadBodyReader(lambda *_: answer)({"wsgi.input": stream, "CONTENT_LENGTH": "10"}, lambda *_: None)
        self.assertTrue(answer.is_closed)

    def test_without_room_for_another_read_nothing_is_read_and_the_request_is_refused(self) -> None:
        ada = get_user_model().objects.create_user("ada")
        own = ApiKey.objects.issue_key(owner=ada)[1]
        form = {"HTTP_COOKIE": f"csrftoken={'a' * 32}", "CONTENT_TYPE": "application/x-www-form-urlencoded"}
        for path, key, headers, status in (
            ("/v1/jobs", own, {}, "503 Service Unavailable"),
            ("/v1/jobs", own, {"HTTP_TRANSFER_ENCODING": "chunked"}, "503 Service Unavailable"),
            ("/admin/login/", "", form, "503 Service Unavailable"),
            ("/v1/jobs", "inf_wrong", {}, "401 Unauthorized"),
        ):
            with self.subTest(path, key=key, **headers), patch.object(unread_body_reader, "MOST_READ", 0):
                self.send(path, key, **headers)
            self.assertEqual(self.status, status)
        self.assertNotIn("read", self.events)
        self.assertFalse(Job.objects.exists())
