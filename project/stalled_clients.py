"""The limit for clients of the web server that read nothing or are gone, which the server itself does not set."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

STALLED_S = 60
LISTENS_S = 60.0  # the longest time from the loaded application to a server that listens
LOOK_S = 0.05
TCP = (socket.AF_INET, socket.AF_INET6)


def set_tcp_timeouts() -> None:
    """Start the thread that sets a limit for clients that read nothing or are gone.

    Without it, once all buffers are full, the thread of a stream is held for as long as its client likes. The thread
    that reads a body is held for ever if the client's host is lost before the body's end.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux has it
        threading.Thread(target=_limit_once_it_listens, name="stalled-clients", daemon=True).start()


def _limit_once_it_listens() -> None:
    """Set the limit once the server listens, which is some time after the application is loaded."""
    give_up_at = time.monotonic() + LISTENS_S
    while not _limit_listening_sockets() and time.monotonic() < give_up_at:
        time.sleep(LOOK_S)


def _limit_listening_sockets() -> bool:
    """Set the limit of each socket that listens, which its connections inherit. Return True if there is one."""
    found = False
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor is closed by now, or is no socket
            known = socket.socket(fileno=int(descriptor))
            try:
                if known.family in TCP and known.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    known.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_S * 1000)
                    known.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, STALLED_S)
                    known.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    found = True
            finally:
                known.detach()
    return found
