"""A completion as it is generated, in the chunks that the clients of OpenAI and of Hugging Face read.

OpenAI's clients take every block of a stream for a chunk. A block may therefore hold nothing but `data`: no `id` and no
`retry`. The `event_id` of each chunk is the position from which a client can read on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import orjson

from api import codec
from api.answers.completions import (
    NO_TEXT,
    CompletionKind,
    make_completion_head,
    make_usage,
    read_details,
    read_finish_reason,
)
from api.answers.events import BEGINS_AGAIN, GOES_ON, KEEP_ALIVE
from api.errors import openai, problems
from inference.models import Job, Status
from inference.streams.events import Delta, End, Event, Interrupted, KeepAlive, Restart
from inference.streams.positions import Position

DONE = b"data: [DONE]\n\n"


class ChunkWriter:
    def __init__(self, kind: CompletionKind, job: Job, *, include_usage: bool, translate: Callable[[str], str]) -> None:
        self.kind, self.translate = kind, translate
        self.common = {**make_completion_head(kind, job), "object": kind.chunk}
        self.usage = {"usage": None} if include_usage else {}

    def write_choice(
        self, part: dict[str, Any], event_id: str, *, text: str = "", ended: str | None = None, **whole: Any
    ) -> bytes:
        choice = {"index": 0, **part, "finish_reason": ended, "logprobs": None}
        token = {"token": {"text": text}, "generated_text": None, "details": None, **whole}
        return self._write_chunk(event_id, [choice], **self.usage, **(token if self.kind.has_tokens else {}))

    def write_end(self, end: End) -> Iterator[bytes]:
        if end.job.status != Status.SUCCEEDED:
            end.job.error_detail = self.translate(end.job.error_detail)
            yield _write_data_block(
                openai.make_error_document(
                    orjson.loads(problems.make_job_problem(end.job).content), inputs=self.kind.inputs
                )
            )
            return
        if end.text is None:
            yield _write_data_block(openai.make_stream_error(NO_TEXT, "bad_output"))
            return
        details = read_details(end.job.output)
        yield self.write_choice(
            self.kind.last, end.id, ended=read_finish_reason(details), generated_text=end.text, details=details or None
        )
        if self.usage:
            yield self._write_chunk(end.id, [], usage=make_usage(details))
        yield DONE

    def _write_chunk(self, event_id: str, choices: list[Any], **more: Any) -> bytes:
        return _write_data_block({**self.common, "choices": choices, "event_id": event_id, **more})


def write_completion_chunks(
    job: Job,
    events: Iterator[Event],
    *,
    kind: CompletionKind,
    after: Position,
    include_usage: bool = False,
    translate: Callable[[str], str] = str,
) -> Generator[bytes, None, None]:
    """Write the events of a job. `translate` puts the text of its error into the client's words."""
    chunks = ChunkWriter(kind, job, include_usage=include_usage, translate=translate)
    yield chunks.write_choice(kind.first, after.make_event_id(job.id))
    for event in events:
        match event:
            case Delta():
                yield chunks.write_choice(kind.part(event.text), event.id, text=event.text)
            case End():
                yield from chunks.write_end(event)
            case Restart():  # text that was sent cannot be taken back
                yield _write_data_block(openai.make_stream_error(BEGINS_AGAIN, "restart"))
                return
            case Interrupted():
                yield _write_data_block(openai.make_stream_error(GOES_ON, "cut"))
            case KeepAlive():
                yield KEEP_ALIVE


def _write_data_block(document: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % codec.write_json(document)
