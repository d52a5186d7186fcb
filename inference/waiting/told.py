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
    """Looks at `waiting` once a tick, in a thread that a web process begins as it starts, and no other process."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._waiting = waiting

    def begin(self) -> None:
        threading.Thread(target=self._tell_forever, name="figures", daemon=True).start()

    def refused(self, code: str, model: str = SERVICE) -> None:
        ledger.note(model, {"refused": {code: 1}})

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
