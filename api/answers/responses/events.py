"""A response as it is generated, in the events that OpenAI's newest clients read.

A client reads on behind the `sequence_number` of the last event that it got. The number follows from the text that was
sent up to then, so that each web process numbers the events of a response alike, however the text comes in pieces.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from api import codec
from api.answers.completions.tool_calls import Arguments, Part, Text, ToolCall, make_call, make_reader
from api.answers.events import BEGINS_AGAIN, GOES_ON, KEEP_ALIVE
from api.answers.responses import response as shapes
from inference.models import Job
from inference.streams.events import Delta, End, Event, Interrupted, KeepAlive, Restart

NUMBERS_A_CHARACTER = 16  # of each character of the text: what one brings into the answer has fewer events
LAST_BEFORE_TEXT = 1  # number of the last event before the text
BEGINNING = -1  # the number before all others
ERROR = "error"
END_TYPES = {"completed": "response.completed", "incomplete": "response.incomplete"}

Document = dict[str, Any]


class ResponseWriter:
    """The output of one response as it grows: its items, of which the last one may be open."""

    def __init__(self, job: Job, repeated: Mapping[str, Any]) -> None:
        """Take the job, and the fields of the request that its response repeats."""
        self.job, self.repeated = job, repeated
        self.at = 0  # characters of the text that were taken
        self._reader = make_reader(job) if "tools" in job.parameters else None
        self._items: list[Document] = []
        self._is_open = False

    def begin_response(self) -> Iterator[Document]:
        head = shapes.make_empty_response(self.job, self.repeated)
        for number, kind in enumerate(("created", "in_progress"), start=LAST_BEFORE_TEXT - 1):
            yield {"type": f"response.{kind}", "response": head, "sequence_number": number}

    def write_text(self, text: str) -> Iterator[Document]:
        """Take more of the text, and yield its events, of which the last has the highest number of its text."""
        self.at += len(text)
        parts = self._reader.read_text(text) if self._reader else [Text(text)]
        shown = [event for part in parts for event in self._write_part(part)]
        last = LAST_BEFORE_TEXT + NUMBERS_A_CHARACTER * self.at
        yield from self._number(shown, last + 1 - len(shown))

    def end_response(self, job: Job) -> Iterator[Document]:
        """Yield the last events. `job` is the finished one."""
        parts = self._reader.end_text() if self._reader else []
        shown = [event for part in parts for event in self._write_part(part)]
        whole = shapes.make_response(job, self.repeated)
        if whole["output"]:
            if not self._items:  # an empty text
                shown += self._open_item(shapes.make_message(self.job, 0, None, "in_progress"))
            shown += self._close_item(whole["output"][-1]["status"])
        shown.append({"type": END_TYPES.get(whole["status"], "response.failed"), "response": whole})
        yield from self._number(shown, LAST_BEFORE_TEXT + NUMBERS_A_CHARACTER * self.at + 1)

    def _number(self, shown: list[Document], first: int) -> Iterator[Document]:
        return ({**event, "sequence_number": number} for number, event in enumerate(shown, start=first))

    def _write_part(self, part: Part) -> Iterator[Document]:
        match part:
            case Text(text):
                if not self._is_open or self._items[-1]["type"] != "message":
                    yield from self._close_item("completed")
                    yield from self._open_item(shapes.make_message(self.job, len(self._items), None, "in_progress"))
                self._items[-1]["text"] += text
                yield {**self._name_part(), "type": "response.output_text.delta", "delta": text, "logprobs": []}
            case ToolCall():
                yield from self._close_item("completed")
                yield from self._open_item(shapes.make_call_item(make_call(self.job, part), "in_progress"))
            case Arguments(_, text):
                self._items[-1]["arguments"] += text
                yield {**self._name_item(), "type": "response.function_call_arguments.delta", "delta": text}

    def _open_item(self, item: Document) -> Iterator[Document]:
        self._items.append({**item, "text": ""})
        self._is_open = True
        yield {**self._place_item(), "type": "response.output_item.added", "item": item}
        if item["type"] == "message":
            part = shapes.make_text_part("")
            yield {**self._name_part(), "type": "response.content_part.added", "part": part}

    def _close_item(self, status: str) -> Iterator[Document]:
        if not self._is_open:
            return
        self._is_open = False
        item = dict(self._items[-1])
        text = item.pop("text")
        if item["type"] == "message":
            part = shapes.make_text_part(text)
            item["content"] = [part]
            yield {**self._name_part(), "type": "response.output_text.done", "text": text, "logprobs": []}
            yield {**self._name_part(), "type": "response.content_part.done", "part": part}
        else:
            arguments = {"name": item["name"], "arguments": item["arguments"]}
            yield {**self._name_item(), "type": "response.function_call_arguments.done", **arguments}
        yield {**self._place_item(), "type": "response.output_item.done", "item": {**item, "status": status}}

    def _place_item(self) -> Document:
        return {"output_index": len(self._items) - 1}

    def _name_item(self) -> Document:
        return {**self._place_item(), "item_id": self._items[-1]["id"]}

    def _name_part(self) -> Document:
        return {**self._name_item(), "content_index": 0}


def write_response_events(
    job: Job, events: Iterator[Event], *, repeated: Mapping[str, Any], after: int = BEGINNING
) -> Generator[bytes, None, None]:
    """Write the events of a response that have a higher number than `after`.

    `events` are those of its job from the first one on, and `repeated` the fields of the request that it repeats: a job
    whose events are read has no inputs in memory.
    """
    for shown in _list_events(ResponseWriter(job, repeated), events, after):
        if shown is None:
            yield KEEP_ALIVE
        elif shown["sequence_number"] > after or shown["type"] == ERROR:
            yield b"event: %b\ndata: %b\n\n" % (shown["type"].encode(), codec.write_json(shown))


def _list_events(writer: ResponseWriter, events: Iterator[Event], after: int) -> Iterator[Document | None]:
    """Yield all events of a response, and None for a sign of life."""
    # Characters that the client has got in whole or in part.
    sent = max(0, math.ceil((after - LAST_BEFORE_TEXT) / NUMBERS_A_CHARACTER))
    before = ""  # text that it has got, which is taken as one piece: so the events behind it are numbered as then
    yield from writer.begin_response()
    for event in events:
        match event:
            case Delta(text=text):
                left = sent - len(before)
                before, text = before + text[:left], text[left:]
                if left and len(before) == sent:
                    yield from writer.write_text(before)
                if text:
                    yield from writer.write_text(text)
            case End(job=job):
                if writer.at < len(before):  # it has got some of the last events
                    yield from writer.write_text(before)
                yield from writer.end_response(job)
            case Restart():  # text that was sent cannot be taken back
                yield _make_error(writer, BEGINS_AGAIN, "restart")
                return
            case Interrupted():
                yield _make_error(writer, GOES_ON, "cut")
            case KeepAlive():
                yield None


def _make_error(writer: ResponseWriter, message: str, code: str) -> Document:
    # It has the number of the event before it, behind which a client is to read on.
    number = LAST_BEFORE_TEXT + NUMBERS_A_CHARACTER * writer.at
    return {"type": ERROR, "code": code, "message": message, "param": None, "sequence_number": number}
