"""How many requests of this process may wait at once: each holds a thread, and polls need some too.

One principal may hold as many slots as are free: half of them while nobody else waits, and whoever comes finds room.
Where no keys are required there are no principals to keep apart, and who comes takes what is free.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

from django.conf import settings


class Slots:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: Counter[Any] = Counter()  # by principal

    @contextlib.contextmanager
    def take(self, principal: Any, timeout_s: float) -> Iterator[float]:
        """How long this request may wait: `timeout_s`, or 0 when too many wait already."""
        with self._lock:
            free = settings.MAX_WAITING_REQUESTS - self._held.total()
            has_share = not settings.API_KEY_REQUIRED or self._held[principal] < free
            granted = timeout_s > 0 and free > 0 and has_share
            self._held[principal] += granted
        try:
            yield timeout_s if granted else 0.0
        finally:
            with self._lock:
                self._held[principal] -= granted
                if not self._held[principal]:
                    del self._held[principal]


slots = Slots()
