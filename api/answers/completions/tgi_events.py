"""The server-sent events of a job's stream for clients of Text Generation Inference: one for each token."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import chain
from typing import Any

from api.answers.events import RETRY, make_end_document, write_event, write_stream_event
from inference.models import Job
from inference.streams.events import Delta, End, Event, Restart
from inference.streams.output_texts import extract_single_answer
from inference.streams.positions import DeliveredText


class TokenWriter:
    """A writer of the events of tokens. The last token of the text so far is held, as the end may belong to it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.count = 0  # tokens that were taken and show in the text
        self._held: list[dict[str, Any]] = []
        self._taken, self._written = DeliveredText(), DeliveredText()

    def write_text(self, delta: Delta) -> Iterator[bytes]:
        """Write the tokens before the last. The text before the first that begins in a delta is of the one before."""
        at = self._taken.at
        starts = [token["start"] - at for token, _ in delta.scores] + [len(delta.text)]
        for last in self._held:
            last["token"]["text"] += delta.text[: starts[0]]
        for (token, likeliest), start, end in zip(delta.scores, starts, starts[1:], strict=False):
            self._held.append(_describe(token, delta.text[start:end], likeliest))
        self.count += len(delta.scores)
        self._taken.add_text(delta.text)
        yield from self._write_tokens(self._held[:-1])
        self._held = self._held[-1:]

    def write_end(self, end: End, *, plain: bool) -> Iterator[bytes]:
        tokens = [*self._held, *self._list_last_tokens(end)]
        yield from self._write_tokens(tokens[:-1])
        yield write_event("end", {**make_end_document(end, plain=plain), **(tokens[-1] if tokens else {})}, end.id)

    def _write_tokens(self, tokens: list[dict[str, Any]]) -> Iterator[bytes]:
        for token in tokens:
            if not token["token"]["special"]:
                self._written.add_text(token["token"]["text"])
            yield write_event("delta", token, self._written.position.make_event_id(self._job.id))

    def _list_last_tokens(self, end: End) -> Iterator[dict[str, Any]]:
        """Yield the tokens behind the last that was taken. Only the names of special ones are shown."""
        details, left = extract_single_answer(end.job.output).get("details", {}), self.count
        for token, likeliest in zip(details.get("tokens", ()), details.get("top_tokens", ()), strict=True):
            if left <= 0:
                yield _describe(token, token["text"] if token["special"] else "", likeliest)
            left -= not token["special"]


def _describe(token: dict[str, Any], text: str, likeliest: list[Any]) -> dict[str, Any]:
    shown = {name: token[name] for name in ("id", "logprob", "special")}
    return {"token": {**shown, "text": text}, **({"top_tokens": likeliest} if likeliest else {})}


def write_token_events(job: Job, events: Iterator[Event], *, plain: bool) -> Generator[bytes, None, None]:
    """Yield an event for each token of a job that has log probabilities. The last one comes with the end."""
    yield RETRY
    writer = TokenWriter(job)
    for event in events:
        match event:
            case Delta() if not (writer.count or event.scores):  # of a worker before an upgrade, which has no tokens
                yield from (write_stream_event(each, plain=plain) for each in chain([event], events))
            case Delta():
                yield from writer.write_text(event)
            case End() if event.text is not None:
                yield from writer.write_end(event, plain=plain)
            case _:
                writer = TokenWriter(job) if isinstance(event, Restart) else writer
                yield write_stream_event(event, plain=plain)
