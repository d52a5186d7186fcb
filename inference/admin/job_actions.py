"""Cancelling jobs and running them again, with a report of exactly what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

from django.contrib import messages
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from inference import errors
from inference.admin.rendering import display
from inference.models import Job, Status
from inference.submission import jobs
from inference.telemetry.plurals import format_count
from inference.upkeep import acts

LINKED = 5
Line = tuple[int, str]  # for the operator: a level of `django.contrib.messages`, and a sentence


def cancel_jobs(ids: Sequence[UUID]) -> Iterator[Line]:
    cancelled, left = acts.cancel_and_count_jobs(ids)
    yield from _report_count(messages.SUCCESS, cancelled[Status.QUEUED], "cancelled before the run")
    yield from _report_count(
        messages.SUCCESS, cancelled[Status.RUNNING], "cancelled during the run; the output is dropped"
    )
    for reason, count in left.items():
        yield from _report_count(messages.WARNING, count, f"not changed: {reason}")


def retry_jobs(ids: Iterable[UUID], *, alone: bool = False) -> Iterator[Line]:
    accepted, refused = list[Job](), Counter[str]()
    for job_id in ids:
        try:
            accepted.append(jobs.submit(jobs.make_resubmission(jobs.fetch(job_id), alone=alone)))
        except errors.InferenceError as error:
            refused[error.message] += 1
    what = f"retried as new jobs{' that run alone' if alone else ''}"
    for level, text in _report_count(messages.SUCCESS, len(accepted), what):
        yield level, format_html("{}: {}", text, _render_links(accepted))
    for reason, count in refused.items():
        yield from _report_count(messages.ERROR, count, f"not retried: {display.escape_text(reason)}")


def _render_links(made: Sequence[Job]) -> SafeString:
    """Return links to the first of these jobs."""
    pages = [(reverse("admin:inference_job_change", args=[job.pk]), job.pk.hex[-8:]) for job in made[:LINKED]]
    links = format_html_join(", ", '<a href="{}">…{}</a>', pages)
    return format_html("{} and more", links) if len(made) > LINKED else links


def _report_count(level: int, count: int, what: str) -> Iterator[Line]:
    if count:
        yield level, f"{format_count(count, 'job')} {what}"
