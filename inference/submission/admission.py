"""The decision whether a queue takes more jobs, at a cost that does not grow with the queue.

A job waits only for jobs of its priority and above, so only those count: a long queue of low priority keeps no job of
a higher one out. Within a process a limit is exact. Several processes may exceed it together, by what each of them
admits at the same moment.
"""

import contextlib
from collections.abc import Collection, Hashable, Iterator
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import QuerySet

from inference import process_resources
from inference.catalog.specs import ModelSpec
from inference.connection_retries import is_away
from inference.errors import InvalidInput, Overloaded, QueueFull, TooManyQueued
from inference.models import Job, Status
from inference.status import queue_position, workers
from inference.submission.submissions import Terms
from inference.values.priority import PATIENT, Priority
from inference.web_process.queue_counter import QueueCounter

RETRY_AFTER_S = (1.0, 60.0)  # the shortest and the longest
_AND_BELOW: dict[int, list[Priority]] = {each: [other for other in Priority if other >= each] for each in Priority}


@contextlib.contextmanager
def reserve_places(terms: Terms, ids: Collection[UUID]) -> Iterator[None]:
    """Admit the jobs `ids`, and keep their room until they are stored, which is the end of the block.

    Raises `TooManyQueued`, `QueueFull` or `Overloaded`; `InvalidInput` if there can never be room for so many.
    """
    model, priority = terms.spec.name, terms.priority
    with contextlib.ExitStack() as rooms:
        if terms.max_owned is not None and terms.owner is not None:
            shared = max(priority, Priority.NORMAL)  # high and normal share one limit
            _enter(rooms, "owner", terms.owner.pk, shared, ids, terms.max_owned)
        limit, longest_s = find_queue_limit(terms.spec, priority), settings.MAX_ESTIMATED_WAIT_S
        if terms.yields:
            limit, longest_s = limit // 2 if len(ids) <= limit // 2 else limit, longest_s / 2
        line = _enter(rooms, "model", model, priority, ids, limit)
        if priority < PATIENT:
            _refuse_long_wait(terms, line.waiting - len(ids), longest_s)
        yield


def _enter(
    rooms: contextlib.ExitStack, kind: str, key: Hashable, priority: int, ids: Collection[UUID], limit: int
) -> QueueCounter:
    """Let the jobs into the line of their priority and those of lower ones, until `rooms` end.

    Returns the line of their priority. Raises what `reserve_places` raises, except `Overloaded`.
    """
    if len(ids) > limit:
        what = f"the queue of {key!r}" if kind == "model" else "your share of the queue"
        raise InvalidInput(
            f"inputs: they make {len(ids)} jobs, and at most {limit} fit in {what} at this priority;"
            " send fewer at once."
        )
    own, *others = lines = [_get_line(kind, key, each) for each in _AND_BELOW[priority]]
    if not own.admit_jobs(ids, limit):
        raise _make_full_error(kind, key, own.waiting, len(ids), limit)
    for line in others:
        line.add_jobs(ids)

    def leave(error: type[BaseException] | None, *_: object) -> None:
        for line in lines:
            line.finish_admission(ids, stored=error is None)

    rooms.push(leave)
    return own


def _make_full_error(kind: str, key: Any, waiting: int, jobs: int, limit: int) -> TooManyQueued | QueueFull:
    low_s, high_s = RETRY_AFTER_S
    if kind == "owner":
        return TooManyQueued(
            f"{waiting} of your jobs wait, and this request has {jobs}: at most {limit} may wait. Try again when some"
            " are finished.",
            retry_after_s=low_s,
        )
    room_in_s = workers.predict_jobs_s(key, waiting + jobs - limit) or 5.0  # at the measured speed
    return QueueFull(
        f"The queue of {key!r} is full: {waiting} jobs wait, at most {limit} may. Try again later.",
        retry_after_s=min(max(room_in_s, low_s), high_s),
        model=key,
    )


def _get_line(kind: str, key: Hashable, priority: int) -> QueueCounter:
    def select_queued() -> QuerySet[Job]:
        return Job.objects.filter(status=Status.QUEUED, priority__lte=priority, **{kind: key})

    counters, name = process_resources.current.queue_counters, (kind, key, priority)
    return counters.get(name) or counters.setdefault(name, QueueCounter(select_queued))


def estimate_wait_s(job: Job) -> float | None:
    """Return about how many seconds a job waits that was admitted a moment ago; None if that is not known.

    It is not known, for example, while the database is away.
    """
    try:
        waiting = _get_line("model", job.model, job.priority).waiting
        return workers.predict_jobs_s(job.model, _count_ahead(job.model, job.priority, job.owner_id, waiting))
    except Exception as error:
        if not is_away(error):
            raise
        return None


def _count_ahead(model: str, priority: int, owner: Hashable, waiting: int) -> int:
    """Return how many of the waiting jobs go before the next job of this owner, since owners take turns."""
    return min(waiting, queue_position.count_jobs_ahead(model, priority, owner)) if waiting > 1 else waiting


def find_queue_limit(spec: ModelSpec, priority: int) -> int:
    """Return how many jobs of a model may wait at a priority.

    Patient jobs delay no others, so more of them may wait.
    """
    return max(spec.max_queued, settings.MAX_LOW_QUEUED) if priority >= PATIENT else spec.max_queued


def _refuse_long_wait(terms: Terms, waiting: int, limit_s: float) -> None:
    """Raise `Overloaded` if a new job would wait for more than `limit_s` behind `waiting` jobs."""
    model = terms.spec.name
    wait_s = workers.predict_jobs_s(model, waiting)
    if limit_s and wait_s and wait_s > limit_s:
        owner = terms.owner and terms.owner.pk
        wait_s = workers.predict_jobs_s(model, _count_ahead(model, terms.priority, owner, waiting))
    if limit_s and wait_s and wait_s > limit_s:
        raise Overloaded(
            f"A new job of {model!r} would wait about {wait_s:.0f} s, more than {limit_s:g} s. Try again later.",
            retry_after_s=min(wait_s - limit_s, RETRY_AFTER_S[1]),
            model=model,
        )
