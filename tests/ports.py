"""Ports for servers of tests."""

from __future__ import annotations

import socket
from random import SystemRandom

HOST = "127.0.0.1"
# Below those that systems give to clients: any connection could take one of these before its server does.
SERVERS = range(10_000, 32_000)


def free_port() -> int:
    """One that is free now. Whoever asks at the same time in another process gets another, but for one in thousands."""
    while True:
        with socket.socket() as probe:
            port = SystemRandom().choice(SERVERS)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
