"""Cancelling and running again, with a report that says exactly what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

from django.contrib import messages
from django.db.models import Count

from inference import errors
from inference.admin import display
from inference.models import Job, Status
from inference.store import transitions
from inference.submission import jobs

Line = tuple[int, str]  # for the operator: a level of `django.contrib.messages`, and a sentence


def cancel(chunks: Iterable[Sequence[UUID]]) -> Iterator[Line]:
    """Each chunk at once: a selection may be a whole queue."""
    cancelled, left = Counter[str](), Counter[str]()
    for ids in chunks:
        now = transitions.cancel_many(ids)
        cancelled += now
        states = Job.objects.filter(pk__in=ids).order_by().values_list("status").annotate(Count("pk"))
        left += Counter(dict(states)) - Counter({Status.CANCELLED: now.total()})
    yield from _counted(messages.SUCCESS, cancelled[Status.QUEUED], "cancelled before a run")
    yield from _counted(messages.SUCCESS, cancelled[Status.RUNNING], "cancelled while running, with the output dropped")
    for status, count in left.items():
        yield from _counted(messages.WARNING, count, f"left as found: {status} already")


def retry(ids: Iterable[UUID], *, alone: bool = False) -> Iterator[Line]:
    accepted, refused = 0, Counter[str]()
    for job_id in ids:
        try:
            jobs.submit(jobs.again(jobs.fetch(job_id), alone=alone))
            accepted += 1
        except errors.InferenceError as error:
            refused[error.message] += 1
    yield from _counted(
        messages.SUCCESS,
        accepted,
        f"submitted again, as new jobs with ids of their own{', that run alone' if alone else ''}",
    )
    for reason, count in refused.items():
        yield from _counted(messages.ERROR, count, f"not accepted. {display.visible(reason)}")


def _counted(level: int, count: int, what: str) -> Iterator[Line]:
    if count:
        yield level, f"{count} {'job' if count == 1 else 'jobs'} {what}"
