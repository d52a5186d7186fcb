"""A call when the web server is stopped, which the server itself does not make."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

STOPS = (signal.SIGTERM, signal.SIGINT)


def call_when_stopped(then: Callable[[], None]) -> None:
    """Call `then`, in a thread of its own, once this process gets a signal to stop.

    The signals' handlers are the server's, which sets them later than this.
    """
    if threading.current_thread() is not threading.main_thread():  # `manage.py runserver` has no handlers
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_call_after_stop_signal, args=(reader, then), name="stop", daemon=True).start()


def _call_after_stop_signal(reader: int, then: Callable[[], None]) -> None:
    while os.read(reader, 1)[0] not in STOPS:
        pass
    then()
