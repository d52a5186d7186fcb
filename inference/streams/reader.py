"""The stream of a job's text for one client, from the position that the client has reached."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from django.db import DatabaseError, InterfaceError, connection

from inference.models import Job, Status
from inference.store import job_rows
from inference.streams.cursor import StreamCursor, TextDiverged
from inference.streams.events import Delta, End, Event, Interrupted, KeepAlive, Restart
from inference.streams.hub import StreamHub, StreamSubscriber
from inference.streams.output_texts import extract_generated_text, extract_single_answer, read_token_logprobs
from inference.streams.positions import BEGINNING, Position

logger = logging.getLogger(__name__)

SILENCE_S = 10.0
LONGEST_S = 3600.0  # then the client has to come back: its API key, or the job, may have been deleted


def stream_events(job: Job, hub: StreamHub, *, after: Position = BEGINNING) -> Iterator[Event]:
    """Return the events of a stored job as they come. The last one is an `End` or a `Interrupted`.

    A `KeepAlive` comes when there was no other event for `SILENCE_S`. The inputs of `job` are dropped from memory. No
    database connection is held meanwhile.
    """
    vars(job).pop("inputs", None)  # deferred from now on, as Django has it
    return _follow_events(job, hub, StreamCursor(job.id, after))


def _follow_events(job: Job, hub: StreamHub, cursor: StreamCursor) -> Iterator[Event]:
    give_up_at = time.monotonic() + LONGEST_S
    with hub.subscribe_to(job.id) as subscriber:
        _wake_if_finished(subscriber)
        while not subscriber.is_over and time.monotonic() < give_up_at:
            event = _wait_for_event(subscriber, cursor)
            if event or not subscriber.is_over:
                yield event or KeepAlive()
        changes = subscriber.changes
    if changes is None:
        yield Interrupted()
        return
    job_rows.set_job_attributes(job, changes)
    text = extract_generated_text(job) if job.status == Status.SUCCEEDED else None
    yield from _make_last_events(job, text, cursor)


def _wake_if_finished(subscriber: StreamSubscriber) -> None:
    """Read the row once, as the job may have finished before the subscriber was registered."""
    try:
        if finished := job_rows.read_outcomes([subscriber.job_id]):
            subscriber.wake(finished[subscriber.job_id])
    except (DatabaseError, InterfaceError) as error:
        logger.warning("job=%s: its row was not read, the listener polls: %s", subscriber.job_id, error)
    finally:
        connection.close()


def _wait_for_event(subscriber: StreamSubscriber, cursor: StreamCursor) -> Delta | Restart | None:
    try:
        return cursor.take_new_text(subscriber.wait_for_entries(SILENCE_S))
    except TextDiverged:
        subscriber.replay_after(cursor.entry_before_attempt)
        return cursor.restart_attempt()


def _make_last_events(job: Job, text: str | None, cursor: StreamCursor) -> Iterator[Event]:
    """Yield the part of the text that was not sent yet, and the end."""
    if text is not None:
        scores = read_token_logprobs(extract_single_answer(job.output).get("details")) or ()
        try:
            rest = cursor.take_rest_of_text(text, scores)
        except TextDiverged:
            yield cursor.restart_attempt()
            rest = cursor.take_rest_of_text(text, scores)
        if rest:
            yield rest
    yield End(job=job, text=text, id=cursor.last_event_id)
