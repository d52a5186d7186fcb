import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from unittest.mock import Mock, patch

from django.test import SimpleTestCase

from inference.webhooks import outbound_post
from inference.webhooks.outbound_post import NotSent, Resolver, is_public
from tests.conditions import PATIENCE_S, eventually

PUBLIC = ("93.184.216.34", "2606:4700::1111", "64:ff9b::808:808")
NOT_PUBLIC = (
    "127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255",
    "192.0.0.192", "64:ff9b::c000:c0", "::1", "::", "fe80::1", "fec0::1", "fc00::1", "ff02::1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808", "2002:7f00:1::1", "2002:808:808::1",
    "::ffff:127.0.0.1", "::127.0.0.1", "2001:0:7f00:1::",
)  # fmt: skip

Serve = Callable[[socket.socket, threading.Event], object]


class AddressTests(SimpleTestCase):
    def test_what_an_address_stands_for_is_judged(self) -> None:
        for address in PUBLIC:
            with self.subTest(address):
                self.assertTrue(is_public(address))
        for address in NOT_PUBLIC:
            with self.subTest(address):
                self.assertFalse(is_public(address))


@contextlib.contextmanager
def server(serve: Serve) -> Iterator[str]:
    """The address of a server whose connections are served by `serve` until the event is set."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE_S)

        def run() -> None:
            connected, _ = listening.accept()
            request = b""
            with connected, contextlib.suppress(OSError):
                while not request.endswith(b"{}"):  # closing with unread bytes would reset the connection
                    if not (part := connected.recv(65_536)):
                        return  # it was given up before it was sent
                    request += part
                serve(connected, over)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/hook"
        finally:
            over.set()
            thread.join()


def answering(answer: bytes) -> Serve:
    return lambda connected, over: connected.sendall(answer)


def post(url: str, limit_s: float = PATIENCE_S, resolver: Resolver | None = None) -> int:
    headers = {"Content-Type": "application/json"}
    return outbound_post.post_checked(url, b"{}", headers, resolver or Resolver(), limit_s=limit_s, private=True)


class PostTests(SimpleTestCase):
    def only_the_answer_is_late(self) -> None:
        """By a clock that goes on a little each time that it is asked, until which all has been sent."""
        ticks = itertools.count()
        self.enterContext(patch.object(outbound_post, "time", Mock(monotonic=lambda: next(ticks) * 0.01)))
        self.enterContext(patch.object(Resolver, "resolve", return_value=["127.0.0.1"]))

    def test_the_status_is_all_that_is_read(self) -> None:
        def endless(connected: socket.socket, over: threading.Event) -> None:
            connected.sendall(b"HTTP/1.1 204 No Content\r\n")
            while not over.is_set():
                connected.sendall(b"X: y\r\n" * 1000)

        with server(endless) as url:
            self.assertEqual(post(url), 204)

    def test_the_request_has_a_path_also_for_an_address_without_one(self) -> None:
        for own, wanted in (("?token=a", "/?token=a"), ("", "/"), ("//a;b?c#d", "//a;b?c"), ("/hook", "/hook")):
            spy = patch.object(HTTPConnection, "putrequest", autospec=True, side_effect=HTTPConnection.putrequest)
            with server(answering(b"HTTP/1.1 200 OK\r\n\r\n")) as url, spy as putrequest:
                post(url.removesuffix("/hook") + own)
            self.assertEqual(putrequest.call_args.args[2], wanted)

    def test_a_drip_of_bytes_ends_at_the_deadline(self) -> None:
        def drip(connected: socket.socket, over: threading.Event) -> None:
            connected.sendall(b"HTTP/1.1 200 ")
            while not over.wait(0.05):
                connected.sendall(b"O")

        self.only_the_answer_is_late()
        with server(drip) as url, self.assertRaisesRegex(NotSent, "timed out"):
            post(url, limit_s=0.5)

    def test_silence_ends_at_the_deadline(self) -> None:
        self.only_the_answer_is_late()
        with server(lambda connected, over: over.wait()) as url, self.assertRaisesRegex(NotSent, "timed out"):
            post(url, limit_s=0.3)

    def test_a_name_that_is_never_resolved_ends_at_the_deadline(self) -> None:
        over = threading.Event()
        with (
            patch.object(socket, "getaddrinfo", side_effect=lambda *_, **__: over.wait()),
            self.assertRaises(NotSent),
        ):
            try:
                post("http://hooks.example/", limit_s=0.3)
            finally:
                over.set()

    def test_a_slow_name_takes_one_thread_for_any_number_of_requests(self) -> None:
        over, resolver = threading.Event(), Resolver()
        # All the time is the resolver's.
        self.enterContext(patch.object(outbound_post, "time", Mock(monotonic=lambda: 0.0)))
        with patch.object(socket, "getaddrinfo", side_effect=lambda *_, **__: over.wait()) as getaddrinfo:
            for _ in range(40):
                with self.assertRaisesRegex(NotSent, "slow.example is not resolved in time"):
                    post("http://slow.example/", 0.01, resolver)
            eventually(lambda: getaddrinfo.call_count, "the name is asked for")
            over.set()
        self.assertEqual(getaddrinfo.call_count, 1)

    def test_an_endless_status_line_and_nonsense_are_failures(self) -> None:
        for answer in (b"HTTP/1.1 200 " + b"x" * 5000, b"SMTP ready\r\n", b"HTTP/1.1 OK\r\n", b"\r\n", b""):
            with (
                self.subTest(answer[:20]),
                server(answering(answer)) as url,
                self.assertRaisesRegex(NotSent, "BadStatusLine"),
            ):
                post(url)

    def test_the_next_address_is_tried_where_the_first_is_dead(self) -> None:
        with server(answering(b"HTTP/1.1 200 OK\r\n\r\n")) as url:
            port = int(url.split(":")[2].split("/")[0])
            found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.1.2.3", "127.0.0.1")]
            with patch.object(socket, "getaddrinfo", return_value=found):
                self.assertEqual(post(f"http://hooks.example:{port}/"), 200)
