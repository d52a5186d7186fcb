"""The stream of a job's text for one client, from the position that the client has reached."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from django.db import DatabaseError, InterfaceError, connection

from inference.models import Job, Status
from inference.store import rows
from inference.streams.events import Cut, Delta, End, Event, Restart, Silence
from inference.streams.live import Ear, live
from inference.streams.positions import BEGINNING, Position
from inference.streams.tale import Differs, Tale
from inference.streams.texts import Prompt, generated

logger = logging.getLogger(__name__)

SILENCE_S = 10.0
LONGEST_S = 3600.0  # then the client has to come back: its API key, or the job, may have been deleted


def read(job: Job, *, after: Position = BEGINNING) -> Iterator[Event]:
    """Return the events of a stored job as they come. The last one is an `End` or a `Cut`.

    A `Silence` comes when there was no other event for `SILENCE_S`. The inputs of `job` are dropped from memory. No
    database connection is held meanwhile.
    """
    prompt = Prompt.of(job.inputs, job.parameters)
    vars(job).pop("inputs", None)
    return _events(job, prompt, Tale(job.id, after))


def _events(job: Job, prompt: Prompt, tale: Tale) -> Iterator[Event]:
    give_up_at = time.monotonic() + LONGEST_S
    with live.follow(job.id) as ear:
        _look(ear)
        while not ear.is_over and time.monotonic() < give_up_at:
            event = _next(ear, tale)
            if event or not ear.is_over:
                yield event or Silence()
        changes = ear.changes
    if changes is None:
        yield Cut()
        return
    rows.change(job, changes)
    yield from _end(job, generated(job, prompt) if job.status == Status.SUCCEEDED else None, tale)


def _look(ear: Ear) -> None:
    """Read the row once, as the job may have finished before the ear was registered."""
    try:
        if finished := rows.finished([ear.job_id]):
            ear.wake(finished[ear.job_id])
    except (DatabaseError, InterfaceError) as error:
        logger.warning("job=%s: its row was not read, the listener polls: %s", ear.job_id, error)
    finally:
        connection.close()


def _next(ear: Ear, tale: Tale) -> Delta | Restart | None:
    try:
        return tale.hear(ear.listen(SILENCE_S))
    except Differs:
        ear.rewind(tale.begins_after)
        return tale.restart()


def _end(job: Job, text: str | None, tale: Tale) -> Iterator[Event]:
    """Yield the part of the text that was not sent yet, and the end."""
    if text is not None:
        try:
            rest = tale.hear_all(text)
        except Differs:
            yield tale.restart()
            rest = tale.hear_all(text)
        if rest:
            yield rest
    yield End(job=job, text=text, id=tale.id)
