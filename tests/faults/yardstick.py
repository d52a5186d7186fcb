"""Measure how slow the machine is while a trial runs: a limit in seconds was chosen on one machine."""

from __future__ import annotations

import hashlib
import statistics
import threading
import time
from typing import Self

WORK = bytes(16 << 20)
WORK_S = 0.02  # that two cores of an AMD EPYC take for it, with five services beside
EVERY_S = 1.0
MOST = 4.0


class Yardstick:
    """Times the same work again and again, in a thread, while its block runs."""

    def __init__(self) -> None:
        self._took_s: list[float] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def slowness(self) -> float:
        """Return how many times as long things take here as on the machine of the limits, from 1 to `MOST`.

        It is bounded, since a service that keeps all cores busy for nothing is slow by itself.
        """
        return min(MOST, max(1.0, statistics.median(self._took_s or [0.0]) / WORK_S))

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            started = time.monotonic()
            hashlib.blake2b(WORK)  # without Python's lock
            self._took_s.append(time.monotonic() - started)
