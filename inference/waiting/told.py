"""Tells the figures which requests a web process answered or refused, and how many wait in it. In rows, as all else:
one process of several is asked for metrics, and tells of all."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from django.db import connection

from inference import clock
from inference.figures import ledger
from inference.figures.sample import SERVICE
from inference.store import connections

logger = logging.getLogger(__name__)


class Teller:
    """A thread that begins with a web process, or with the first thing to tell, and looks at `waiting` once a tick."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._waiting = waiting
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._tell_forever, name="figures", daemon=True)
                self._thread.start()

    def refused(self, code: str, model: str = SERVICE) -> None:
        ledger.note(model, {"refused": {code: 1}})
        self.begin()

    def _tell_forever(self) -> None:
        connections.own()
        while True:
            time.sleep(ledger.TICK_S - clock.time_s() % ledger.TICK_S)
            self.tell()
            connection.close()

    def tell(self) -> None:
        """What cannot be written now is kept for the next tick."""
        if waiting := self._waiting():
            ledger.note(SERVICE, {"now": {"requests_waiting": waiting}})
        try:
            ledger.flush()
        except Exception as error:
            logger.warning("figures not written yet: %s", error)
