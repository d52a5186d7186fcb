"""The compute slots of a web process, in which two requests compute at once.

Hundreds of requests may want the interpreter at the same time, because they came together or were woken together. They
would keep each other waiting, and every short request among them.

A slot is no lock: a request that has waited long for a slot goes on without one.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator

from inference import budget
from inference.store import connections

AT_ONCE = 2  # one computes, one reads or writes
PATIENCE_S = 0.5  # for which a request waits for a slot


class _Own(threading.local):
    slots: ComputeSlots | None = None  # those of which this thread has one


_own = _Own()


class ComputeSlots:
    """The slots of a process.

    A thread gives back the slot that it took. It may repeat either call. Each waiting thread has a lock of its own,
    which costs a fifth of a semaphore.
    """

    def __init__(self) -> None:
        self.free = AT_ONCE
        self._waiting: deque[threading.Lock] = deque()  # each is released by a thread that passes its slot on
        self._lock = threading.Lock()

    def take_slot(self) -> None:
        """Take a slot for this thread, or go on without one after `PATIENCE_S`."""
        if _own.slots:
            return
        with self._lock:
            if self.free:
                self.free -= 1
                _own.slots = self
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        if self._wait_for_turn(turn):
            _own.slots = self

    def _wait_for_turn(self, turn: threading.Lock) -> bool:
        connections.release_connection()
        with budget.counted_wait(PATIENCE_S) as patience_s:
            if turn.acquire(timeout=patience_s):
                return True
        with self._lock:
            if is_late := turn in self._waiting:
                self._waiting.remove(turn)
            return not is_late

    def pass_slot_on(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self.free += 1


def return_slot() -> None:
    """Give back the slot of this thread, if it has one."""
    slots, _own.slots = _own.slots, None
    if slots:
        slots.pass_slot_on()


@contextlib.contextmanager
def lend_slot() -> Iterator[None]:
    """Lend this thread's slot to others while the thread waits within this context."""
    slots = _own.slots
    return_slot()
    try:
        yield
    finally:
        if slots:
            slots.take_slot()


@contextlib.contextmanager
def release_while_waiting(limit_s: float) -> Iterator[float]:
    """Yield the seconds that a request may wait for another request: `limit_s`, or what is left of its budget.

    Meanwhile other requests may have its compute slot and its connection of the pool.
    """
    connections.release_connection()
    with lend_slot(), budget.counted_wait(limit_s) as left_s:
        yield left_s
