"""What the client does when the service does not answer as it should: a server that says what it is told to."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from unittest import TestCase
from unittest.mock import patch

from batch_inference_client import BaseClient, Client, ClientError, client
from batch_inference_client.http import Http
from tests.batch_inference_client import pauses
from tests.conditions import PATIENCE_S, eventually

Scripted = tuple[int, Any, dict[str, str]]

JOB = {"id": "01a1fe16-7155-735a-8526-dcb6495b5837", "status": "succeeded", "output": "done", "error": None}
FULL = {"code": "queue_full", "detail": "The queue is full.", "request_id": "r1"}
CLOSE = None  # the connection, without an answer
SILENCE: Scripted = (0, b"", {})  # the connection stays, without an answer


class Server(ThreadingHTTPServer):
    def __init__(self, *script: Scripted | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.requests = list(script), list[dict[str, str]]()
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        left = int(self.headers.get("Content-Length", 0))
        while left:
            left -= len(self.rfile.read(min(left, 65_536)))
        self.server.requests.append(
            {"path": self.path, **{name.lower(): value for name, value in self.headers.items()}}
        )
        scripted = self.server.script.pop(0)
        if scripted is None:
            self.close_connection = True
            return
        if scripted is SILENCE:
            self.server.over.wait()
            self.close_connection = True
            return
        status, body, headers = scripted
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST

    def log_message(self, *_: Any) -> None:
        pass


class Hasty(Http):
    """Gives up its first request soon, and no other."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.url)
        self.server, self.limits_s = server, [1.2]

    def _send(self, *arguments: Any, **options: Any) -> Any:
        if self.limits_s:
            return super()._send(*arguments, **{**options, "read_s": self.limits_s.pop()})
        eventually(lambda: len(self.server.script) == 1, "the first request is read")
        return super()._send(*arguments, **{**options, "read_s": PATIENCE_S})


class TroubleTests(TestCase):
    def setUp(self) -> None:
        self.slept = pauses.recorded(self)

    def run_against(self, *script: Scripted | None, patience_s: float = PATIENCE_S) -> tuple[Any, list[dict[str, str]]]:
        with Server(*script) as server, Client(server.url, "secret", patience_s=patience_s) as client:
            try:
                found = client.run("echo", "x")
            except ClientError as error:
                found = error
            return found, server.requests

    def test_a_full_queue_is_tried_again_when_it_says(self) -> None:
        output, requests = self.run_against((503, FULL, {"Retry-After": "7"}), (200, JOB, {}))
        self.assertEqual((output, len(requests)), ("done", 2))
        (pause_s,) = self.slept
        self.assertGreaterEqual(pause_s, 7.0)

    def test_a_lost_answer_is_requested_again_with_the_same_key(self) -> None:
        output, requests = self.run_against(CLOSE, (502, b"<html>", {}), CLOSE, (200, JOB, {}))
        self.assertEqual((output, len(requests)), ("done", 4))
        self.assertEqual(len({each["idempotency-key"] for each in requests}), 1)
        self.assertLess(self.slept[0], self.slept[2])

    def test_an_answer_that_never_comes_is_requested_again(self) -> None:
        """It may have taken longer than the patience."""
        with (
            Server(SILENCE, (200, JOB, {})) as server,
            BaseClient(Hasty(server), patience_s=1.0) as client_,
        ):
            self.assertEqual((client_.run("echo", "x"), len(server.requests)), ("done", 2))

    def test_a_service_that_does_not_answer_is_waited_for_as_long_as_the_caller_says(self) -> None:
        with (
            Server(SILENCE) as server,
            Client(server.url) as client_,
            patch.object(client, "GRACE_S", 0.1),
        ):
            with self.assertRaises(ClientError) as away:
                client_.run("echo", "x", timeout=0.1)
            eventually(lambda: server.requests, "what was sent is read")
        self.assertEqual((away.exception.code, len(server.requests)), ("unreachable", 1))

    def test_each_submission_has_a_key_of_its_own(self) -> None:
        keys = {self.run_against((200, JOB, {}))[1][0]["idempotency-key"] for _ in range(3)}
        self.assertEqual(len(keys), 3)

    def test_what_is_refused_is_not_sent_again(self) -> None:
        problem = {"code": "invalid_input", "detail": "inputs: must be a string.", "request_id": "r2"}
        error, requests = self.run_against((422, problem, {}))
        self.assertEqual((error.code, error.request_id, len(requests)), ("invalid_input", "r2", 1))

    def test_patience_ends(self) -> None:
        error, requests = self.run_against((503, FULL, {"Retry-After": "90"}), patience_s=60.0)
        self.assertEqual((error.code, len(requests), self.slept), ("queue_full", 1, []))

    def test_a_redirect_is_not_followed_with_the_key(self) -> None:
        with Server() as other:
            error, requests = self.run_against((307, b"", {"Location": f"{other.url}/v1/jobs"}))
            self.assertEqual((error.code, len(requests), other.requests), ("redirected", 1, []))
            self.assertIn(other.url, str(error))
        self.assertEqual(requests[0]["authorization"], "Bearer secret")

    def test_another_server_is_distinguished_from_the_service(self) -> None:
        error, requests = self.run_against((404, b"<html>", {}))
        self.assertEqual((error.code, len(requests)), ("no_answer", 1))
        self.assertIn("Is the address right?", str(error))

    def test_the_error_of_an_absent_service_says_what_to_do(self) -> None:
        with Client("http://127.0.0.1:1", "secret", patience_s=0.0) as client, self.assertRaises(ClientError) as away:
            client.run("echo", "x")
        self.assertEqual(away.exception.code, "unreachable")
        self.assertIn("does the service run?", str(away.exception))
        self.assertNotIn("secret", str(away.exception))

    def test_an_address_that_is_none_is_refused(self) -> None:
        for url in ("127.0.0.1:8000", "ftp://a", "http://", "http://user:pass@a", "http://a?x=1", ""):
            with self.subTest(url), self.assertRaises(ClientError):
                Client(url)

    def test_keys_that_are_none_are_refused(self) -> None:
        for key in ("inf_…", "inf_a\r\nX: 1", "a b"):
            with self.subTest(key), self.assertRaises(ClientError) as refused:
                Client("http://127.0.0.1:1", key)
            self.assertNotIn(key, str(refused.exception))
            with Server() as server, Client(server.url) as client, self.assertRaises(ClientError):
                client.submit("echo", "x", key=key)

    def test_connections_are_kept(self) -> None:
        script: list[Scripted] = [(200, JOB, {}) for _ in range(5)]
        with (
            Server(*script) as server,
            Client(server.url) as client,
            patch.object(server, "process_request", wraps=server.process_request) as connected,
        ):
            for _ in range(5):
                client.run("echo", "x")
        self.assertEqual(connected.call_count, 1)
