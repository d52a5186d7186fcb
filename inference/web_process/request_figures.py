"""The figures of a web process: the requests that it answered or refused, and how many wait in it.

They are kept in rows, as all figures are, since only one of several processes is asked for metrics, and it reports all
of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from django.db import connection

from inference import clock
from inference.figures import tally_rows
from inference.figures.sample import SERVICE
from inference.store import connections

logger = logging.getLogger(__name__)


class RequestFigures:
    """The writer of a web process's figures, which calls `waiting` once a tick.

    It does so in a thread, which a web process begins as it starts. No other process does.
    """

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._waiting = waiting

    def start(self) -> None:
        threading.Thread(target=self._record_forever, name="figures", daemon=True).start()

    def _record_forever(self) -> None:
        connections.bypass_connection_pool()
        while True:
            time.sleep(tally_rows.TICK_S - clock.estimate_now_s() % tally_rows.TICK_S)
            self.write_figures()
            connection.close()

    def write_figures(self) -> None:
        """Write the figures of this process. Those that cannot be written now are kept for the next tick."""
        if waiting := self._waiting():
            tally_rows.note_tally(SERVICE, {"now": {"requests_waiting": waiting}})
        try:
            tally_rows.flush_tallies()
        except Exception as error:
            logger.warning("figures not written yet: %s", error)
