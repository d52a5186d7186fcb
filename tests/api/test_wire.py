"""Malformed and slow HTTP on raw sockets against the real web server: rows 20 and 21 of the fault matrix."""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse

from tests.conditions import PATIENCE_S
from tests.e2e.case import StackCase
from tests.ports import HOST
from tests.stack import ECHO

LIMIT = 100_000
BODY = b'{"model":"echo","inputs":"x"}'
HEAD = b"Host: 127.0.0.1\r\nConnection: close\r\n"
JSON = HEAD + b"Content-Type: application/json\r\n"
POST = b"POST /v1/jobs HTTP/1.1\r\n" + JSON


def post(body: bytes, headers: bytes = b"") -> bytes:
    return POST + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    parts = [b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks]
    return POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(parts) + end


def get(path: bytes, headers: bytes = b"") -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\n" + HEAD + headers + b"\r\n"


# What the service answers itself: a problem document, never 5xx.
PROBLEMS = {
    "empty body": (post(b""), 400),
    "no body": (POST + b"\r\n", 400),
    "text": (post(b"hello"), 400),
    "cut": (post(BODY[:-1]), 400),
    "two documents": (post(BODY + BODY), 400),
    "an array": (post(b"[1]"), 422),
    "a string": (post(b'"x"'), 422),
    "null": (post(b"null"), 422),
    "NaN": (post(b'{"model":"echo","inputs":NaN}'), 400),
    "infinity": (post(b'{"model":"echo","inputs":-Infinity}'), 400),
    "too large a number": (post(b'{"model":"echo","inputs":1e999}'), 400),
    "deep": (post(b'{"model":"echo","inputs":' + b"[" * 1000 + b"]" * 1000 + b"}"), 400),
    "100,000 deep": (post(b"[" * 99_999), 400),
    "deep objects": (post(b'{"a":' * 5000), 400),
    "NUL": (post(b'{"model":"echo","inputs":"\\u0000"}'), 400),
    "raw NUL": (post(b'{"model":"echo","inputs":"\0"}'), 400),
    "NUL in the model": (post(b'{"model":"ec\\u0000ho","inputs":"x"}'), 400),
    "lone surrogate": (post(b'{"model":"echo","inputs":"\\ud800"}'), 400),
    "lone low surrogate": (post(b'{"model":"echo","inputs":"\\udc00x"}'), 400),
    "not UTF-8": (post(b'{"model":"echo","inputs":"\xff"}'), 400),
    "UTF-16": (post('{"model":"echo","inputs":"x"}'.encode("utf-16")), 400),
    "byte order mark": (post(b"\xef\xbb\xbf" + BODY), 400),
    "a number as text": (post(b'{"model":"echo","inputs":"x","expires_in":"7"}'), 422),
    "a boolean as number": (post(b'{"model":"echo","inputs":"x","expires_in":true}'), 422),
    "a number out of bounds": (post(b'{"model":"echo","inputs":"x","expires_in":1e300}'), 422),
    "a negative number": (post(b'{"model":"echo","inputs":"x","expires_in":-1}'), 422),
    "null for inputs": (post(b'{"model":"echo","inputs":null}'), 422),
    "unknown field": (post(b'{"model":"echo","inputs":"x","__proto__":{}}'), 422),
    "no model of that name": (post(b'{"model":"../../etc/passwd","inputs":"x"}'), 404),
    "form": (b"POST /v1/jobs HTTP/1.1\r\n" + HEAD + b"Content-Type: application/x-www-form-urlencoded\r\n"
             b"Content-Length: 3\r\n\r\na=b", 415),
    "multipart": (b"POST /v1/jobs HTTP/1.1\r\n" + HEAD + b"Content-Type: multipart/form-data; boundary=x\r\n"
                  b"Content-Length: 3\r\n\r\n--x", 415),
    "gzip": (post(BODY, b"Content-Encoding: gzip\r\n"), 415),
    "over the limit": (post(b"x" * (LIMIT + 1)), 413),
    "over the limit, announced": (POST + b"Content-Length: 99999999999999\r\n\r\n", 413),
    "chunked over the limit": (chunked(*[b"x" * 50_000] * 3), 413),
    "chunked and empty": (chunked(), 400),
    "no host": (b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
    "a foreign host": (b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 400),
    "path out of the root": (get(b"/v1/../../etc/passwd"), 404),
    "path that is not UTF-8": (get(b"/v1/jobs/%ff%fe"), 404),
    "NUL in the path": (get(b"/v1/jobs/%00"), 404),
    "a long path": (get(b"/v1/jobs/" + b"a" * 20_000), 404),
    "NUL in the query": (get(b"/v1/jobs?model=%00"), 400),
    "an odd method": (b"BREW /v1/jobs HTTP/1.1\r\n" + HEAD + b"\r\n", 405),
    "an unknown address": (b"POST /nope HTTP/1.1\r\n" + JSON + b"Content-Length: 2\r\n\r\n{}", 404),
    "the server itself": (b"OPTIONS * HTTP/1.1\r\n" + HEAD + b"\r\n", 400),
    "an odd Idempotency-Key": (post(BODY, b"Idempotency-Key: \xff\r\n"), 400),
}  # fmt: skip
# What the HTTP server refuses before it is a request.
REFUSED = {
    "garbage": b"\x00\x01\x02 garbage\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "a negative length": POST + b"Content-Length: -5\r\n\r\n" + BODY,
    "a length that is no number": POST + b"Content-Length: abc\r\n\r\n" + BODY,
    "two lengths": POST + b"Content-Length: 29\r\nContent-Length: 5\r\n\r\n" + BODY,
    "raw bytes in the path": get(b"/v1/jobs/\xff\xfe"),
    "500 headers": get(b"/healthz", b"".join(b"X-%d: y\r\n" % number for number in range(500))),
    "a path of 200 KB": get(b"/v1/jobs/" + b"a" * 200_000),
}


class WireCase(StackCase):
    options = {"models": ECHO, "workers": 0, "environment": {"MAX_BODY_BYTES": str(LIMIT)}}

    @contextlib.contextmanager
    def connection(self) -> Iterator[socket.socket]:
        with contextlib.closing(socket.create_connection((HOST, self.stack.port), timeout=PATIENCE_S)) as opened:
            yield opened

    def exchange(self, request: bytes, *, leave: bool = False) -> bytes:
        """Everything that comes back."""
        with self.connection() as opened:
            with contextlib.suppress(OSError):  # the server may answer and close before it has read all
                opened.sendall(request)
                if leave:
                    opened.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: opened.recv(65_536), b""))


class MalformedTests(WireCase):
    def test_whatever_is_sent_is_answered_with_a_problem_and_never_5xx(self) -> None:
        for name, (request, status) in PROBLEMS.items():
            with self.subTest(name):
                head, _, body = self.exchange(request).partition(b"\r\n\r\n")
                self.assertEqual(int(head.split(b" ")[1]), status, head + body)
                self.assertIn(b"content-type: application/problem+json", head.lower())
                self.assertEqual(json.loads(body)["status"], status)

    def test_what_is_not_http_is_refused_by_the_server(self) -> None:
        for name, request in REFUSED.items():
            with self.subTest(name):
                head = self.exchange(request).partition(b"\r\n")[0]
                self.assertRegex(head, rb"^HTTP/1.1 4\d\d ")

    def test_a_chunked_body_is_a_body(self) -> None:
        for chunks in ((BODY,), (BODY[:5], BODY[5:])):
            self.assertIn(b" 202 ", self.exchange(chunked(*chunks)).partition(b"\r\n")[0])

    def test_a_body_without_its_end_is_no_job(self) -> None:
        before = self.stack.jobs.count()
        for _ in range(20):
            answer = self.exchange(POST + b"Content-Length: 100\r\n\r\n" + BODY, leave=True)
            self.assertIn(answer.partition(b"\r\n")[0], (b"", b"HTTP/1.1 400 Bad Request"))
        self.assertEqual(self.stack.get("/healthz").status, 200)
        self.assertEqual(self.stack.jobs.count(), before)

    def test_a_head_has_the_headers_of_a_get_and_no_body(self) -> None:
        answer = self.exchange(b"HEAD /healthz HTTP/1.1\r\n" + HEAD + b"\r\n")
        self.assertTrue(answer.endswith(b"\r\n\r\n"))
        self.assertIn(b"content-length: 15", answer.lower())

    def test_expect_is_answered_before_the_body(self) -> None:
        with self.connection() as opened:
            opened.sendall(POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY))
            self.assertIn(b"100 Continue", opened.recv(100))
            opened.sendall(BODY)
            self.assertIn(b" 202 ", opened.recv(65_536))

    def test_a_connection_goes_on_after_a_refused_body(self) -> None:
        """Its body comes late and piece by piece; nobody has looked at it. Without that the server hangs up."""
        for path, size in (("/v1/models/nope", 30), ("/nope", LIMIT - 1), ("/v1/jobs", 2 * LIMIT)):
            head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {size}\r\n\r\n".encode()
            with self.subTest(path), self.connection() as opened:
                for _ in range(10):
                    opened.sendall(head)
                    for piece in (b"x", b"x" * (size // 2 - 1), b"x" * (size - size // 2)):
                        opened.sendall(piece)
                    answer = HTTPResponse(opened)
                    answer.begin()
                    self.assertIn(answer.status, (404, 413, 415))
                    self.assertEqual(json.loads(answer.read())["status"], answer.status)

    def test_a_header_cannot_be_split_by_a_request_id(self) -> None:
        answer = self.exchange(get(b"/healthz", b"X-Request-Id: a b\x0bc\r\n"))
        self.assertNotIn(b"a b", answer)


class SlowTests(WireCase):
    SLOW = 100

    def test_slow_clients_hold_nobody_up(self) -> None:
        """Half-sent headers, half-sent bodies and half-sent chunks, all at once."""
        halves = (
            b"POST /v1/jobs HTT",
            POST + b"X-Slow: ",
            POST + b"Content-Length: 1000\r\n\r\n{",
            POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
        )
        with contextlib.ExitStack() as stack:
            slow = [stack.enter_context(self.connection()) for _ in range(self.SLOW)]
            for opened, half in zip(slow, itertools.cycle(halves), strict=False):
                opened.sendall(half)
            self.others_are_served(100)
            ended, _, _ = select.select(slow, [], [], 0)
            self.assertEqual(ended, [], "they were served beside them, and not after them")

    def test_their_threads_come_back(self) -> None:
        for _ in range(3):
            with contextlib.ExitStack() as stack:
                for _ in range(40):
                    stack.enter_context(self.connection()).sendall(POST + b"Content-Length: 1000\r\n\r\n{")
        self.assertEqual(self.stack.get("/healthz").status, 200)
        self.others_are_served(10)

    def others_are_served(self, requests: int) -> None:
        with ThreadPoolExecutor(4) as clients:
            answers = list(clients.map(lambda _: self.stack.get("/v1/models").status, range(requests)))
        self.assertEqual(answers, [200] * requests)
