"""Does what the web server does not: tell that it stops, and give up a client that reads nothing or is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable

STALLED_S = 60
LISTENS_S = 60.0  # after the application is loaded, at the latest
LOOK_S = 0.05
TCP = (socket.AF_INET, socket.AF_INET6)
STOPS = (signal.SIGTERM, signal.SIGINT)


def drop_stalled_clients() -> None:
    """The thread of a stream is else held for as long as its client likes, once all buffers are full, and that of a
    body for ever where the client's host is lost before its end."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux has it
        threading.Thread(target=_limit_once_it_listens, name="stalled-clients", daemon=True).start()


def _limit_once_it_listens() -> None:
    """The server listens some time after the application is loaded."""
    give_up_at = time.monotonic() + LISTENS_S
    while not _limited() and time.monotonic() < give_up_at:
        time.sleep(LOOK_S)


def _limited() -> bool:
    """Whether there is a socket that listens: connections inherit its limit."""
    found = False
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it is closed by now, or no socket
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


def when_stopped(then: Callable[[], None]) -> None:
    """Call it once this process is told to stop. The server sets the handlers of signals, later than this."""
    if threading.current_thread() is not threading.main_thread():  # of `manage.py runserver`, which has no handlers
        return
    told, tells = os.pipe()
    os.set_blocking(tells, False)
    signal.set_wakeup_fd(tells, warn_on_full_buffer=False)
    threading.Thread(target=_call, args=(told, then), name="stop", daemon=True).start()


def _call(told: int, then: Callable[[], None]) -> None:
    while os.read(told, 1)[0] not in STOPS:
        pass
    then()
