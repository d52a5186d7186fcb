"""Counts of the jobs that wait in a line, such as one owner's.

A line is counted now and then. Its count is exact where the line is nearly full.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from uuid import UUID

from django.db.models import QuerySet

from inference import budget
from inference.errors import make_nothing_stored_error
from inference.models import Job
from inference.store.connections import release_connection_while_waiting

RECOUNT_S = 0.5
ROOM = 100  # jobs that other processes may let in before this one counts again
EXACT = 1000  # jobs: longer lines are counted less often, the longer the less
COUNTING_SHARE = 0.01  # of the time that the count of a long line may take
LONGEST_FRESH_S = 10.0
PATIENCE_S = 2.5  # for which a request waits for the count of another one


class QueueCounter:
    """A line of waiting jobs, with one count at a time.

    A request that comes during a count waits for the next one, which includes all jobs that came before. If the line is
    far from full, or long, the last count is used.
    """

    def __init__(self, jobs: Callable[[], QuerySet[Job]]) -> None:
        self._jobs = jobs
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._begun_at = self._fresh_until = self._refuses_until = self._failed_at = float("-inf")
        self._counted_to = 0
        self._entering: set[UUID] = set()  # jobs that were let in, and are perhaps not stored yet
        self._stored: set[UUID] = set()  # jobs that were stored since the last count began
        self.waiting = 0

    def admit_jobs(self, ids: Collection[UUID], limit: int) -> bool:
        """Let in all of `ids` or none, and return True if at most `limit` jobs wait with them.

        Raises `StoreUnavailable` if the line cannot be counted in time.
        """
        came_at = time.monotonic()
        if not self._is_count_usable(came_at, len(ids), limit):
            with self._hold_count_lock(came_at):
                if self._begun_at < came_at or self._counted_to <= limit:
                    self._count(limit)
        with self._lock:
            if self.waiting + len(ids) > limit:
                return False
            self._add(ids)
            return True

    def add_jobs(self, ids: Collection[UUID]) -> None:
        """Add jobs that were let into another line and wait in this one, too."""
        with self._lock:
            self._add(ids)

    def finish_admission(self, ids: Collection[UUID], *, stored: bool) -> None:
        with self._lock:
            self._entering.difference_update(ids)
            if not stored:
                self.waiting -= len(ids)
            elif self._counting.locked():
                self._stored.update(ids)

    def _add(self, ids: Collection[UUID]) -> None:
        self._entering.update(ids)
        self.waiting += len(ids)

    def _is_count_usable(self, now: float, jobs: int, limit: int) -> bool:
        if self._counted_to <= limit:
            return False
        is_fresh = now < self._fresh_until
        if self.waiting + jobs + ROOM <= limit:
            return is_fresh or self._counting.locked()
        if self.waiting + jobs > limit:
            is_fresh = now < self._refuses_until
        return is_fresh and self.waiting > EXACT

    @contextlib.contextmanager
    def _hold_count_lock(self, came_at: float) -> Iterator[None]:
        if not self._counting.acquire(blocking=False):
            with release_connection_while_waiting(PATIENCE_S) as patience_s:
                is_alone = self._counting.acquire(timeout=patience_s)
            if not is_alone:
                raise make_nothing_stored_error()
        try:
            if self._failed_at > came_at:
                raise make_nothing_stored_error()
            yield
        finally:
            self._counting.release()

    def _count(self, limit: int) -> None:
        begun_at, counted_to = time.monotonic(), limit + ROOM
        with self._lock:
            self._stored.clear()
        try:
            waiting = self._jobs().order_by().values_list("pk", flat=True)[:counted_to]
            found = waiting.count() if limit > EXACT else set(waiting)
        except Exception:
            if budget.get_remaining_s():  # with no time left the request failed, and not the database
                self._failed_at = time.monotonic()
            raise
        took_s = time.monotonic() - begun_at
        with self._lock:
            own = self._entering | self._stored
            self.waiting = found + len(own) if isinstance(found, int) else len(found | own)
            self._begun_at, self._counted_to = begun_at, counted_to
            self._fresh_until = begun_at + min(max(RECOUNT_S, took_s / COUNTING_SHARE), LONGEST_FRESH_S)
            self._refuses_until = begun_at + took_s + RECOUNT_S
