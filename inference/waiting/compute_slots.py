"""Two requests of a process compute at once. Hundreds that want the interpreter at the same time, because they came
together or were woken together, would keep each other waiting, and every short request among them.

A courtesy and no lock: who has waited long for a slot goes on without one.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator

from inference import budget
from inference.store import connections

AT_ONCE = 2  # one computes, one reads or writes
PATIENCE_S = 0.5


class _Own(threading.local):
    holds = False


class ComputeSlots:
    """The slots of this process. What a thread takes it gives back; both may be repeated. Whoever waits has a lock of
    its own, which costs a fifth of a semaphore."""

    def __init__(self) -> None:
        self.free = AT_ONCE
        self._waiting: deque[threading.Lock] = deque()  # each is released by who gives up its slot
        self._lock = threading.Lock()
        self._own = _Own()

    def take(self) -> None:
        """Waits for `PATIENCE_S` at most."""
        if self._own.holds:
            return
        with self._lock:
            if self.free:
                self.free -= 1
                self._own.holds = True
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        self._own.holds = self._wait(turn)

    def _wait(self, turn: threading.Lock) -> bool:
        connections.give_back()
        with budget.spent(PATIENCE_S) as patience_s:
            if turn.acquire(timeout=patience_s):
                return True
        with self._lock:
            if is_late := turn in self._waiting:
                self._waiting.remove(turn)
            return not is_late

    def give_back(self) -> bool:
        """Whether this thread had one."""
        held, self._own.holds = self._own.holds, False
        if held:
            with self._lock:
                if self._waiting:
                    self._waiting.popleft().release()
                else:
                    self.free += 1
        return held

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Others may have this thread's slot while it waits."""
        held = self.give_back()
        try:
            yield
        finally:
            if held:
                self.take()


compute_slots = ComputeSlots()


@contextlib.contextmanager
def lending(limit_s: float) -> Iterator[float]:
    """How long a request may wait for another one: `limit_s`, or what is left of its time. Meanwhile others may have
    its compute slot and its connection of the pool."""
    connections.give_back()
    with compute_slots.lent(), budget.spent(limit_s) as left_s:
        yield left_s
