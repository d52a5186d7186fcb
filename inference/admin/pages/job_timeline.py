"""The events of a job, in order, as its row has them."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.humanize.templatetags.humanize import ordinal
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from inference.admin.rendering import display, svg
from inference.models import Job, PausedModel, Status, Webhook, WebhookState
from inference.status import queue_position, workers
from inference.store import job_rows

NOTHING = mark_safe("")


class EventState(enum.StrEnum):
    DONE = "done"
    FAILED = "failed"
    NOW = "now"
    NEXT = "next"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    what: str
    at: datetime.datetime | None = None  # None if the row has no time of it
    after: str = ""  # duration since the job was accepted
    detail: SafeString | str = NOTHING
    state: EventState = EventState.DONE


def list_events(job: Job) -> list[Event]:
    """Return the events of a job in the order in which they happened."""
    found = [
        *_list_recovery_events(job),
        *_list_message_events(job),
        *_list_claim_events(job),
        *_list_queue_events(job),
        *_list_end_events(job),
        *_list_webhook_events(job),
    ]
    return [_make_accepted_event(job), *found]


def draw_wait_and_run(job: Job) -> SafeString:
    """Draw how long a job waited and ran."""
    parts = [("waited", job.queue_wait), ("ran", job.run_time)]
    known = [(name, took.total_seconds()) for name, took in parts if took is not None]
    return svg.draw_shares(known) if known else NOTHING


def _make_event(job: Job, what: str, at: datetime.datetime | None, **more: Any) -> Event:
    after = display.format_duration(at - job.created_at) if at and at > job.created_at else ""
    return Event(what=what, at=at, after=after, **more)


def _make_accepted_event(job: Job) -> Event:
    by = format_html("by {}", display.escape_text(str(job.owner))) if job.owner_id else "without a key"
    route = format_html(" at {}", display.escape_text(job.route)) if job.route else NOTHING
    request = format_html(", request {}", _render_request_link(job.request_id)) if job.request_id else NOTHING
    parts = format_html(", in {} parts", job.parts) if job.parts else NOTHING
    return _make_event(job, "Accepted", job.created_at, detail=format_html("{}{}{}{}", by, route, request, parts))


def _render_request_link(request_id: str) -> SafeString:
    url = reverse("admin:inference_job_changelist", query={"q": request_id})
    return format_html('<a href="{}"><code>{}</code></a>', url, display.escape_text(request_id))


def _list_message_events(job: Job) -> Iterator[Event]:
    if job.parts:
        return  # only its parts have messages
    if job.published_at:
        what = "Message sent again" if job.recoveries or job.attempts > 1 else "Message sent"
        yield _make_event(job, what, job.published_at, detail="to the queue of its model")
    elif job.status == Status.QUEUED:
        yield Event(what="Message not sent yet", detail="housekeeping sends it soon", state=EventState.NOW)


def _list_recovery_events(job: Job) -> Iterator[Event]:
    earlier = 0 if job.parts else job.attempts - (job.started_at is not None)
    if job.recoveries > earlier:  # more losses than runs: a retry that is to run alone begins so
        detail = "no other job runs beside it; it fails if its process is lost"
        yield Event(what="To run alone", detail=detail, state=EventState.NEXT)
        return
    if earlier:
        detail = "each time the process died and the batch was divided, or the batch was given back"
        yield Event(what=f"Claimed {_format_times(earlier)} before", detail=detail)
    if job.recoveries:
        alone = "; it now runs alone" if job.recoveries >= job_rows.get_run_alone_threshold() else ""
        times = f"{_format_times(job.recoveries)}, of at most {settings.MAX_RECOVERIES}{alone}"
        yield Event(what="Queued again: the process that ran it was lost", detail=times, state=EventState.FAILED)


def _format_times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _list_claim_events(job: Job) -> Iterator[Event]:
    if job.started_at is None:
        return
    if job.parts:
        yield _make_event(job, "First part started", job.started_at)
        return
    if job.published_at:  # a worker that claims a job has fetched its message; no row has the time
        yield Event(what="Fetched", detail=format_html("by {}, which adds it to a batch", render_worker_link(job)))
    where = format_html(" on {}", job.device) if job.device else NOTHING
    attempt = f", the {ordinal(job.attempts)} attempt" if job.attempts > 1 else ""
    yield _make_event(
        job,
        "Claimed",
        job.started_at,
        detail=format_html("by {}{}, in {}{}", render_worker_link(job), where, render_batch_link(job), attempt),
    )
    if job.status == Status.RUNNING and job.lease_until:
        detail = format_html("the lease ends {}", display.render_relative_time(job.lease_until))
        yield Event(what="Running", detail=detail, state=EventState.NOW)


def render_worker_link(job: Job) -> SafeString | str:
    if job.worker is None:
        return display.NONE
    name = getattr(job, "worker_name", None)
    if name is None:  # the row of a worker is removed some time after its end
        return f"…{job.worker.hex[-8:]}"
    url = reverse("admin:inference_worker_change", args=[job.worker])
    return format_html('<a href="{}">{}</a>', url, display.escape_text(name))


def render_batch_link(job: Job, words: str = "a batch of ") -> SafeString | str:
    """Return a link to the batch that the job ran in. The refused lines of a file have a batch and did not run."""
    if job.batch is None or job.started_at is None:
        return display.NONE
    url = reverse("admin:inference_job_batch", args=[job.batch])
    size = f"{words}{job.batch_size}" if job.batch_size else "a batch"
    return format_html('<a href="{}">{}</a>', url, size)


def _list_queue_events(job: Job) -> Iterator[Event]:
    if job.status != Status.QUEUED or job.parts:
        return
    place = queue_position.find_position(job)
    soon = f", in about {display.format_duration(place.wait_s)}" if place.wait_s is not None else ""
    yield Event(
        what=f"Number {place.position:,} in the queue",
        detail=_explain_wait(job) or f"waits for its turn{soon}",
        state=EventState.NOW,
    )
    if job.expires_at:
        yield Event(
            what="Expires", at=job.expires_at, detail="if no worker has started it by then", state=EventState.NEXT
        )


def _explain_wait(job: Job) -> str:
    """Return why the turn of a job does not come, or an empty string if it comes."""
    if pause := PausedModel.objects.filter(pk=job.model).first():
        return f"its model has been paused since {display.format_moment(pause.paused_at)}"
    return "" if workers.count_serving_workers(job.model) else "no living worker serves its model"


def _list_end_events(job: Job) -> Iterator[Event]:
    if job.finished_at is None:
        return
    ran = f"after a run of {display.format_duration(job.run_time)}" if job.run_time is not None else ""
    if job.status == Status.SUCCEEDED:
        yield _make_event(job, "Succeeded", job.finished_at, detail=ran)
    elif job.status == Status.FAILED:
        found = (display.render_block(job.full_detail), display.render_block(job.error_trace or ""))
        why = format_html("<strong>{}</strong> {}{}{}", job.error_code, ran, *found)
        yield _make_event(job, "Failed", job.finished_at, detail=why, state=EventState.FAILED)
    elif job.status == Status.CANCELLED:
        dropped = "during the run; the output is dropped" if job.started_at else "before the run"
        yield _make_event(job, "Cancelled", job.finished_at, detail=dropped, state=EventState.FAILED)
    else:
        why = format_html("{}", display.escape_text(job.full_detail))
        yield _make_event(job, job.status.capitalize(), job.finished_at, detail=why, state=EventState.FAILED)


def _list_webhook_events(job: Job) -> Iterator[Event]:
    webhook = Webhook.objects.filter(job=job).first()
    if webhook is None:
        return
    link = reverse("admin:inference_webhook_change", args=[webhook.pk])
    tried = f", tried {_format_times(webhook.attempts)}" if webhook.attempts else ""
    why = format_html(": {}", display.escape_text(webhook.last_error)) if webhook.last_error else NOTHING
    detail = format_html('<a href="{}">{}</a>{}{}', link, display.escape_text(webhook.url), tried, why)
    states = {WebhookState.DELIVERED: EventState.DONE, WebhookState.GIVEN_UP: EventState.FAILED}
    state = WebhookState(webhook.state)
    yield Event(what=f"Webhook {state}", detail=detail, state=states.get(state, EventState.NEXT))
