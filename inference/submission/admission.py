"""Whether a queue takes more jobs, at a cost that does not grow with the queue.

A job waits for those of its priority and above only, so only those count: a long queue
of low priority keeps nobody out. Within a process a limit is exact; several processes may pass it together, by what
each lets in at the same moment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import QuerySet

from inference.catalog.specs import ModelSpec
from inference.errors import InvalidInput, Overloaded, QueueFull, TooManyQueued
from inference.failures import is_away
from inference.models import Job, Priority, Status
from inference.status import workers
from inference.submission.lines import Line
from inference.submission.submissions import Terms

RETRY_AFTER_S = (1.0, 60.0)

_lines: dict[tuple[str, Any, int], Line] = {}  # by what they are of, its key, and priority


@contextlib.contextmanager
def room(terms: Terms, ids: Collection[UUID]) -> Iterator[None]:
    """Room for jobs of these terms, kept until they are stored, which is the end of the block.

    Raises `TooManyQueued`, `QueueFull` or `Overloaded`, and `InvalidInput` where there can never be room for so many.
    """
    with contextlib.ExitStack() as rooms:
        if terms.max_owned is not None and terms.owner is not None:
            rooms.enter_context(_owned_room(terms.owner.pk, ids, terms.priority, terms.max_owned))
        rooms.enter_context(_model_room(terms.spec, ids, terms.priority))
        yield


@contextlib.contextmanager
def _owned_room(owner_id: Any, ids: Collection[UUID], priority: int, limit: int) -> Iterator[None]:
    _require_possible(len(ids), limit, "your share of the queue")
    shared = max(priority, Priority.NORMAL)  # by high and normal
    with _entered("owner", owner_id, shared, ids, limit) as waiting:
        if waiting is not None:
            raise TooManyQueued(
                f"{waiting} of your jobs wait, at most {limit} may. Try again when some are finished.",
                retry_after_s=RETRY_AFTER_S[0],
            )
        yield


@contextlib.contextmanager
def _model_room(spec: ModelSpec, ids: Collection[UUID], priority: int) -> Iterator[None]:
    limit = max_queued(spec, priority)
    _require_possible(len(ids), limit, f"the queue of {spec.name!r}")
    with _entered("model", spec.name, priority, ids, limit) as waiting:
        if waiting is not None:
            raise QueueFull(
                f"The queue of {spec.name!r} is full: {waiting} jobs wait, at most {limit} may. Try again later.",
                retry_after_s=_retry_after_s(spec.name, waiting + len(ids) - limit),
            )
        if priority < Priority.LOW:
            _refuse_long_wait(spec.name, _line("model", spec.name, priority).waiting - len(ids))
        yield


def _require_possible(jobs: int, limit: int, what: str) -> None:
    """Raises `InvalidInput`."""
    if jobs > limit:
        raise InvalidInput(f"inputs: at most {limit} jobs fit in {what} at this priority; send {jobs} in parts.")


@contextlib.contextmanager
def _entered(kind: str, key: Any, priority: int, ids: Collection[UUID], limit: int) -> Iterator[int | None]:
    """None when they were let in, else how many wait."""
    own, *others = [_line(kind, key, each) for each in Priority if each >= priority]
    if not own.enter(ids, limit):
        yield own.waiting
        return
    for line in others:
        line.join(ids)
    stored = False
    try:
        yield None
        stored = True
    finally:
        for line in (own, *others):
            line.leave(ids, stored=stored)


def _line(kind: str, key: Any, priority: int) -> Line:
    name = (kind, key, priority)
    return _lines.get(name) or _lines.setdefault(name, Line(lambda: _queued(priority, **{kind: key})))


def _queued(priority: int, **conditions: Any) -> QuerySet[Job]:
    return Job.objects.filter(status=Status.QUEUED, priority__lte=priority, **conditions)


def wait_s(model: str, priority: int) -> float | None:
    """About how long a job that was admitted a moment ago waits; None also when nobody can tell now."""
    try:
        return workers.seconds_for(model, _line("model", model, priority).waiting)
    except Exception as error:
        if not is_away(error):
            raise
        return None


def max_queued(spec: ModelSpec, priority: int) -> int:
    """Jobs of low priority delay nobody else: more of them may wait."""
    return max(spec.max_queued, settings.MAX_LOW_QUEUED) if priority == Priority.LOW else spec.max_queued


def forget() -> None:
    _lines.clear()


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
