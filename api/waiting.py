"""How many requests of this process may wait at once: each holds a thread, and polls need some too."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from django.conf import settings


class Slots:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0

    @contextlib.contextmanager
    def take(self, timeout_s: float) -> Iterator[float]:
        """How long this request may wait: `timeout_s`, or 0 when too many wait already."""
        granted = timeout_s > 0 and self._enter()
        try:
            yield timeout_s if granted else 0.0
        finally:
            if granted:
                self._leave()

    def __len__(self) -> int:
        return self._taken

    def _enter(self) -> bool:
        with self._lock:
            if self._taken >= settings.MAX_WAITING_REQUESTS:
                return False
            self._taken += 1
            return True

    def _leave(self) -> None:
        with self._lock:
            self._taken -= 1


slots = Slots()
