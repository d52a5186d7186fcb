"""The server-sent events of a job's stream.

Hugging Face's clients of text-generation can read their data too. These look at `token` and `error` alone, and have no
other events than text and errors.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from api import codec
from api.answers import resources
from inference.models import Job, Status
from inference.streams.events import Delta, End, Event, Interrupted, KeepAlive, Restart
from inference.streams.output_texts import extract_single_answer
from inference.streams.positions import BEGINNING

CONTENT_TYPE = "text/event-stream"
KEEP_ALIVE = b": keep-alive\n\n"
RETRY = b"retry: 1000\n\n"  # milliseconds after which a browser connects again
BEGINS_AGAIN = "The text begins again: another attempt generates another one."
GOES_ON = "This server is stopping and the job goes on: connect again with the id of the last event."


def write_event(name: str, data: object, event_id: str = "") -> bytes:
    named = f"event: {name}\nid: {event_id}\n" if event_id else f"event: {name}\n"
    return named.encode() + b"data: " + codec.write_json(data) + b"\n\n"


def write_events_with_address(job: Job, events: Iterator[Event], *, plain: bool) -> Generator[bytes, None, None]:
    """Yield the events of `write_events`, after a first event with the address where the stream can be read on."""
    shown = {"id": job.id, "stream": f"/v1/jobs/{job.id}/stream"}
    yield write_event("job", {"job": shown, **_make_token_field("")}, BEGINNING.make_event_id(job.id))
    yield from write_events(job, events, plain=plain)


def write_events(job: Job, events: Iterator[Event], *, plain: bool) -> Generator[bytes, None, None]:
    yield RETRY
    for each in events:
        yield write_stream_event(each, plain=plain)


def write_stream_event(event: Event, *, plain: bool) -> bytes:
    match event:
        case Delta():
            tokens = {} if event.tokens is None else {"tokens": event.tokens}
            return write_event("delta", {**_make_token_field(event.text), **tokens}, event.id)
        case Restart():
            return write_event("restart", _make_error_fields(BEGINS_AGAIN, "restart"), event.id)
        case End():
            return write_event("end", make_end_document(event, plain=plain), event.id)
        case Interrupted():
            return write_event("cut", _make_error_fields(GOES_ON, "cut"))
        case KeepAlive():
            return KEEP_ALIVE


def make_end_document(end: End, *, plain: bool) -> dict[str, Any]:
    job = end.job
    shown = {"job": resources.make_job_document(job, plain=plain)}
    if job.status != Status.SUCCEEDED:
        return {
            **shown,
            **_make_error_fields(job.public_detail or f"The job is {job.status}.", job.error_code or job.status),
        }
    details = {"details": found} if (found := extract_single_answer(job.output).get("details")) else {}
    return {**shown, **_make_token_field(""), "generated_text": end.text, **details}


def _make_token_field(text: str) -> dict[str, Any]:
    return {"token": {"text": text}}


def _make_error_fields(detail: str, code: str) -> dict[str, Any]:
    return {"error": detail, "error_type": code}
