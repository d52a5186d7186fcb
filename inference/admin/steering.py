"""Cancelling and running again, with a report that says exactly what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from django.contrib import messages

from inference import errors, jobs
from inference.admin import display
from inference.models import Job, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One sentence for the operator. `level` is one of `django.contrib.messages`."""

    level: int
    text: str


def cancel(chosen: Iterable[Job]) -> Iterator[Line]:
    cancelled: Counter[str] = Counter()  # by the status before
    finished: Counter[str] = Counter()
    for job in chosen:
        after = jobs.cancel(job.pk).status
        if after == Status.CANCELLED != job.status:
            cancelled[job.status] += 1
        else:
            finished[after] += 1
    yield from _counted(messages.SUCCESS, cancelled[Status.QUEUED], "cancelled before a run")
    yield from _counted(messages.SUCCESS, cancelled[Status.RUNNING], "cancelled while running, with the output dropped")
    for status, count in finished.items():
        yield from _counted(messages.WARNING, count, f"left as found: {status} already")


def retry(chosen: Iterable[Job]) -> Iterator[Line]:
    accepted, refused = 0, Counter[str]()
    for job in chosen:
        try:
            jobs.retry(job.pk)
            accepted += 1
        except errors.SubmissionError as error:
            refused[error.message] += 1
    yield from _counted(messages.SUCCESS, accepted, "submitted again, as new jobs with ids of their own")
    for reason, count in refused.items():
        yield from _counted(messages.ERROR, count, f"not accepted. {display.visible(reason)}")


def _counted(level: int, count: int, what: str) -> Iterator[Line]:
    if count:
        yield Line(level=level, text=f"{count} {'job' if count == 1 else 'jobs'} {what}")
