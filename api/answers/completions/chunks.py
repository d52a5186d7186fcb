"""A completion as it is generated, in the chunks that the clients of OpenAI and of Hugging Face read.

OpenAI's clients take every block of a stream for a chunk. A block may therefore hold nothing but `data`: no `id` and no
`retry`. The `event_id` of each chunk is the position from which a client can read on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from api import codec
from api.answers.completions.completion import (
    NO_TEXT,
    CompletionKind,
    make_completion_head,
    make_usage,
    may_call_tools,
    read_details,
    read_finish_reason,
)
from api.answers.completions.tool_calls import Part, ToolCallReader, make_delta, make_reader
from api.answers.events import BEGINS_AGAIN, GOES_ON, KEEP_ALIVE
from api.errors import openai, problems
from inference.models import Job, Status
from inference.streams.events import Delta, End, Event, Interrupted, KeepAlive, Restart
from inference.streams.output_texts import read_token_logprobs
from inference.streams.positions import BEGINNING, DeliveredText, Position

DONE = b"data: [DONE]\n\n"


class ChunkWriter:
    """A writer of the chunks of one completion, from its first character on or behind `after`."""

    def __init__(
        self, kind: CompletionKind, job: Job, *, after: Position, include_usage: bool, translate: Callable[[str], str]
    ) -> None:
        self.kind, self.job, self.after, self.translate = kind, job, after, translate
        self.reader = make_reader(job) if may_call_tools(kind, job) else None
        self.taken, self.written = DeliveredText(), DeliveredText()  # the text without what the reader holds back
        self.at = after.at  # characters of which chunks were written
        self.scored_at = after.at  # of which scores were, too: the events of a worker before an upgrade have none
        self.scores: list[Any] = []  # of text that was taken
        self.common = {**make_completion_head(kind, job), "object": kind.chunk}
        self.usage = {"usage": None} if include_usage else {}

    def read_text_and_calls(self, reader: ToolCallReader, text: str) -> list[Part]:
        """Take more of an answer that may have calls, and return its parts."""
        if self.taken.at == self.after.at:  # what is held back here was sent before: what follows shows that it is text
            self.written.add_text(reader.held)
            reader.drop_held()
        held = reader.held + text
        parts = reader.read_text(text)
        self.taken.add_text(text)
        self.written.add_text(held[: len(held) - len(reader.held)])
        return parts

    def take_scores_before(self, end: int) -> list[Any]:
        """Return the scores of the tokens that begin in the text up to `end`, of which a chunk follows."""
        taken = [each for each in self.scores if self.at <= each[0]["start"] < end]
        self.scores = [each for each in self.scores if each[0]["start"] >= end]
        self.at, self.scored_at = end, end if taken else self.scored_at
        return taken

    def write_choice(
        self,
        part: dict[str, Any],
        event_id: str,
        *,
        text: str = "",
        ended: str | None = None,
        scores: Sequence[Any] = (),
        **whole: Any,
    ) -> bytes:
        logprobs = self.kind.make_logprobs(scores) if scores else None
        choice = {"index": 0, **part, "finish_reason": ended, "logprobs": logprobs}
        token = {"token": {"text": text}, "generated_text": None, "details": None, **whole}
        return self._write_chunk(event_id, [choice], **self.usage, **(token if self.kind.has_tokens else {}))

    def write_text(self, delta: Delta) -> Iterator[bytes]:
        """Write text of the answer.

        What it holds of calls is in one chunk, whose position is behind the text that was read: a client may read on
        from any chunk.
        """
        text = delta.text
        self.scores += delta.scores
        if self.reader is None:
            scores = self.take_scores_before(self.at + len(text))
            yield self.write_choice(self.kind.part(text), delta.id, text=text, scores=scores)
        elif parts := self.read_text_and_calls(self.reader, text):
            place = self.written.position.make_event_id(self.job.id)
            scores = self.take_scores_before(self.written.at)
            yield self.write_choice({"delta": make_delta(self.job, parts)}, place, scores=scores)

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
        last = self.kind.last
        if self.reader:
            parts = self.reader.end_text()
            is_known = self.after.at == self.taken.at  # to a client that has got the last chunk
            last = {"delta": {} if is_known else make_delta(self.job, parts)}
        reason = read_finish_reason(details, calls_tools=bool(self.reader and self.reader.count))
        scores = [each for each in read_token_logprobs(details) or () if each[0]["start"] >= self.scored_at]
        yield self.write_choice(
            last, end.id, ended=reason, scores=scores, generated_text=end.text, details=details or None
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
    after: Position = BEGINNING,
    include_usage: bool = False,
    translate: Callable[[str], str] = str,
) -> Generator[bytes, None, None]:
    """Write the events of a job that are behind `after`.

    `translate` puts the text of the job's error into the client's words.
    Where `may_call_tools` holds, `events` are all of them, as the text before a position decides how the rest is read.
    """
    chunks = ChunkWriter(kind, job, after=after, include_usage=include_usage, translate=translate)
    yield chunks.write_choice(kind.first, after.make_event_id(job.id))
    if chunks.reader:
        events = _skip_sent_text(events, chunks.taken, after, partial(chunks.read_text_and_calls, chunks.reader))
    for event in events:
        match event:
            case Delta():
                yield from chunks.write_text(event)
            case End():
                yield from chunks.write_end(event)
            case Restart():  # text that was sent cannot be taken back
                yield _write_data_block(openai.make_stream_error(BEGINS_AGAIN, "restart"))
                return
            case Interrupted():
                yield _write_data_block(openai.make_stream_error(GOES_ON, "cut"))
            case KeepAlive():
                yield KEEP_ALIVE


def _skip_sent_text(
    events: Iterator[Event], taken: DeliveredText, after: Position, read: Callable[[str], object]
) -> Iterator[Event]:
    """Yield the events behind a position, and have the text before it read, by which `taken` moves on.

    A text that differs from the one that was sent begins again.
    """
    while taken.at < after.at:
        match event := next(events, None):
            case Delta():
                left = after.at - taken.at
                text = event.text[left:]
                read(event.text[:left])
                if taken.at == after.at and taken.position != after:
                    yield Restart(id=event.id)
                elif text:
                    yield replace(event, text=text)
            case End() if event.text is not None:
                yield Restart(id=event.id)
            case None:
                return
            case _:
                yield event
    yield from events


def _write_data_block(document: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % codec.write_json(document)
