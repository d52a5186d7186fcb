"""Whether a queue takes more jobs, at a cost that does not grow with the queue.

A job waits for those of its priority and above only, so only those count: a long queue
of low priority keeps nobody out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from inference import workers
from inference.catalog import ModelSpec
from inference.errors import Overloaded, QueueFull, TooManyQueued
from inference.models import Job, Priority, Status

RECOUNT_S = 0.5
COUNTING_SHARE = 0.01  # of the time: a long queue takes longer to count, and is counted less often
RETRY_AFTER_S = (1.0, 60.0)


class Tally:
    """Upper estimates of how many jobs wait, by key: the last count and what this process added since.

    Counted again when the estimate is old, by one thread while the others use it still, and before a refusal.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Any, tuple[int, float]] = {}  # count, fresh until
        self._counting: set[Any] = set()

    def waiting(self, key: Any, limit: int, jobs: Callable[[], QuerySet[Job]]) -> int:
        """How many of `jobs` wait, counted up to `limit` only."""
        count, fresh_until = self._counts.get(key, (limit, 0.0))
        started = time.monotonic()
        if count < limit and (started < fresh_until or key in self._counting):
            return count
        self._counting.add(key)
        try:
            count = jobs().order_by().values("pk")[:limit].count()
        finally:
            self._counting.discard(key)
        took_s = time.monotonic() - started
        with self._lock:
            self._counts[key] = (count, started + max(RECOUNT_S, took_s / COUNTING_SHARE))
        return count

    def last(self, key: Any) -> int:
        return self._counts.get(key, (0, 0.0))[0]

    def add(self, key: Any, jobs: int) -> None:
        with self._lock:
            count, fresh_until = self._counts.get(key, (0, 0.0))
            self._counts[key] = (count + jobs, fresh_until)

    def forget(self) -> None:
        with self._lock:
            self._counts.clear()


_ahead = Tally()
_owned = Tally()


def admit(spec: ModelSpec, priority: int = Priority.NORMAL, *, jobs: int = 1) -> None:
    """Raises `QueueFull` or `Overloaded`."""
    limit = max_queued(spec, priority)
    key = (spec.name, priority)
    ahead = _ahead.waiting(key, limit, lambda: _queued(model=spec.name, priority__lte=priority))
    if ahead + jobs > limit:
        raise QueueFull(
            f"The queue of {spec.name!r} is full: {ahead} jobs wait, at most {limit} may. Try again later.",
            retry_after_s=_retry_after_s(spec.name, ahead + jobs - limit),
        )
    if priority < Priority.LOW:
        _refuse_long_wait(spec.name, ahead)
    _ahead.add(key, jobs)


def wait_s(model: str, priority: int) -> float | None:
    """About how long a job that was admitted a moment ago waits, without asking the database."""
    return workers.seconds_for(model, _ahead.last((model, priority)))


def admit_owner(owner_id: int, limit: int, priority: int = Priority.NORMAL, *, jobs: int = 1) -> None:
    """Raises `TooManyQueued` when more than `limit` jobs of one owner would wait at that priority and above."""
    key = (owner_id, priority)
    waiting = _owned.waiting(key, limit, lambda: _queued(owner=owner_id, priority__lte=priority))
    if waiting + jobs > limit:
        raise TooManyQueued(
            f"{waiting} of your jobs wait, at most {limit} may. Try again when some are finished.",
            retry_after_s=RETRY_AFTER_S[0],
        )
    _owned.add(key, jobs)


def max_queued(spec: ModelSpec, priority: int) -> int:
    """Jobs of low priority delay nobody else: more of them may wait."""
    return max(spec.max_queued, settings.MAX_LOW_QUEUED) if priority == Priority.LOW else spec.max_queued


def forget() -> None:
    _ahead.forget()
    _owned.forget()


def _queued(**conditions: Any) -> QuerySet[Job]:
    return Job.objects.filter(status=Status.QUEUED, **conditions)


def _refuse_long_wait(model: str, ahead: int) -> None:
    """Raises `Overloaded`."""
    limit_s = settings.MAX_ESTIMATED_WAIT_S
    wait_s = workers.seconds_for(model, ahead)
    if limit_s and wait_s and wait_s > limit_s:
        raise Overloaded(
            f"A new job of {model!r} would wait about {wait_s:.0f} s, more than {limit_s:g} s. Try again later.",
            retry_after_s=min(wait_s - limit_s, RETRY_AFTER_S[1]),
        )


def _retry_after_s(model: str, too_many: int) -> float:
    """When there is room again, at the measured speed."""
    low, high = RETRY_AFTER_S
    return min(max(workers.seconds_for(model, too_many) or 5.0, low), high)
