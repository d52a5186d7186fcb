"""Slots that limit how many requests of this process wait at once: each holds a thread, and polls need some too.

One principal may hold as many slots as are free. That is half of them while no other principal waits, so that a new
principal finds room. Where no keys are required there are no principals to keep apart, and any request may take any
free slot.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable
from typing import Any

from django.conf import settings


class WaitSlots:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: Counter[Any] = Counter()  # by principal

    def limit_wait(self, principal: Hashable, timeout_s: float) -> Slot:
        """Return a context manager that yields the seconds that this request may wait.

        These are `timeout_s`, or 0 if too many requests wait already.
        """
        return Slot(self, principal, timeout_s)

    def try_take_slot(self, principal: Hashable) -> bool:
        with self._lock:
            free = settings.MAX_WAITING_REQUESTS - self._held.total()
            granted = free > 0 and (not settings.API_KEY_REQUIRED or self._held[principal] < free)
            if granted:
                self._held[principal] += 1
            return granted

    def return_slot(self, principal: Hashable) -> None:
        with self._lock:
            self._held[principal] -= 1
            if not self._held[principal]:
                del self._held[principal]


class Slot:  # a class costs half of what a generator does
    def __init__(self, slots: WaitSlots, principal: Hashable, timeout_s: float) -> None:
        self._slots, self._principal, self._timeout_s = slots, principal, timeout_s

    def __enter__(self) -> float:
        self._is_held = self._timeout_s > 0 and self._slots.try_take_slot(self._principal)
        return self._timeout_s if self._is_held else 0.0

    def __exit__(self, *error: object) -> None:
        if self._is_held:
            self._slots.return_slot(self._principal)
