"""The POST to a client's server: to an address that was checked, and within one deadline for all its steps."""

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any
from urllib.parse import urlsplit

LONGEST_STATUS_LINE = 1024  # bytes
INSIDE = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "fec0::/10", "2002::/16")))  # Python 3.11 calls them public
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address


class NotSent(Exception):
    """The POST failed. The message says why, and is for operators."""


class Deadline:
    def __init__(self, limit_s: float) -> None:
        self._at_s = time.monotonic() + limit_s

    def require_left_s(self) -> float:
        """Return the seconds that are left. Raises `TimeoutError` if none are."""
        if (left_s := self._at_s - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        return left_s


class Resolver:
    """The look-ups of names, each in a thread, as a look-up has no timeout of its own.

    A slow name takes one thread for all its callers.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(32, thread_name_prefix="resolver")
        self._look_ups: dict[tuple[str, int], Future[Any]] = {}
        self._lock = threading.Lock()

    def resolve(self, host: str, port: int, deadline: Deadline) -> list[str]:
        """Return all addresses of the host, in the order in which the system would try them. Raises `NotSent`."""
        name = (host, port)
        with self._lock:
            looked_up = self._look_ups.get(name)
            if looked_up is None:
                looked_up = self._threads.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
                self._look_ups[name] = looked_up
                looked_up.add_done_callback(lambda _: self._look_ups.pop(name))
        try:
            found = looked_up.result(deadline.require_left_s())
        except FutureTimeout:
            raise NotSent(f"the name {host} is not resolved in time") from None
        return list(dict.fromkeys(str(info[4][0]) for info in found))


def post_checked(
    url: str, body: bytes, headers: Mapping[str, str], resolver: Resolver, *, limit_s: float, private: bool
) -> int:
    """Send a POST and return the status of the answer, of which no more is read.

    `private` also allows addresses that are not public. Raises `NotSent`, at the latest `limit_s` seconds after the
    call.
    """
    parts, deadline = urlsplit(url), Deadline(limit_s)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    try:
        addresses = resolver.resolve(host, port, deadline)
        if not private and (inside := [address for address in addresses if not is_public(address)]):
            raise NotSent(f"{host} resolves to {inside[0]}, which is not a public address")
        with _connect(addresses, port, deadline) as plain, _add_tls(plain, parts.scheme, host, deadline) as connected:
            request = http.client.HTTPConnection(host, port)
            request.sock = connected
            connected.settimeout(deadline.require_left_s())
            request.request("POST", path, body, dict(headers))
            return _read_status(connected, deadline)
    except (OSError, http.client.HTTPException) as error:
        raise NotSent(f"{type(error).__name__}: {error}") from error


def is_public(address: str) -> bool:
    """Return True if an address is of the public internet, and so is the IPv4 address that it stands for, if any.

    Mapped, compatible, 6to4, Teredo's and a network's own NAT64 addresses are not public, as no public host has them.
    """
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address) and found in NAT64:
        found = ipaddress.IPv4Address(int(found) & 0xFFFF_FFFF)
    is_inside = found.is_multicast or found.is_reserved or any(found in known for known in INSIDE)
    return found.is_global and not is_inside


def _connect(addresses: Sequence[str], port: int, deadline: Deadline) -> socket.socket:
    """Connect to the first address that answers.

    Each address but the last may take only its share of the time that is left. Raises `OSError`.
    """
    for tries_left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
        try:
            return socket.create_connection((address, port), timeout=deadline.require_left_s() / tries_left)
        except OSError:
            if tries_left == 1:
                raise
    raise OSError("the name has no address")


def _add_tls(connected: socket.socket, scheme: str, host: str, deadline: Deadline) -> socket.socket:
    if scheme != "https":
        return connected
    connected.settimeout(deadline.require_left_s())
    return ssl.create_default_context().wrap_socket(connected, server_hostname=host)


def _read_status(connected: socket.socket, deadline: Deadline) -> int:
    """Read the status line, however slowly it comes within the deadline, and return its status."""
    line = b""
    while b"\n" not in line:
        connected.settimeout(deadline.require_left_s())
        part = connected.recv(LONGEST_STATUS_LINE)
        if not part or len(line) > LONGEST_STATUS_LINE:
            raise http.client.BadStatusLine(repr(line[:100]))
        line += part
    version, status, *_ = [*line.split(b"\n")[0].split(None, 2), b"", b""]
    if not version.startswith(b"HTTP/") or not status.isdigit():
        raise http.client.BadStatusLine(repr(line[:100]))
    return int(status)
