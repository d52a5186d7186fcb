"""The calls of tools in a generated text, read as the text grows.

A model writes a call as its chat template showed it. Two forms are known: `<tool_call>{"name": …, "arguments": {…}}
</tool_call>`, which Hermes, Qwen and SmolLM3 write among other text, and the object alone as the whole answer, which
Llama 3 writes with `parameters` in place of `arguments`, and which a call that a request requires has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from api.requests.dialects.generation.tools import ARGUMENTS, CLOSE
from inference.models import Job

OPEN = "<tool_call>"
HEAD = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
LONGEST_HEAD = 400  # characters: an object without a tag whose head is longer is text
LONGEST_OTHER = 4_000  # characters of a call whose arguments stand before its name
MOST_FALSE_TAGS = 100  # of an answer, behind which a tag is text: each costs a copy of what follows it
BETWEEN = " \t\r\n;"  # characters that may part calls without tags


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the answer that belongs to no call."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The beginning of a call."""

    index: int  # of the call within the answer
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A part of the JSON text of a call's arguments."""

    index: int
    text: str


Part = Text | ToolCall | Arguments


class _State(Enum):
    BEGINNING = auto()  # of the answer, or behind a call without a tag: another such call may follow
    TEXT = auto()
    HEAD = auto()  # of a call with a tag, up to its arguments
    ARGUMENTS = auto()
    TAIL = auto()  # of a call, behind its arguments


class ToolCallReader:
    """A reader of one answer, which takes its text in pieces of any length.

    The parts do not depend on the pieces. `held` is the end of the text of which no part was returned yet.
    """

    def __init__(self, names: Collection[str]) -> None:
        """Take the names of the tools: the call of another one is text."""
        self.count = 0  # of calls so far
        self.held = ""
        self._names = names
        self._state, self._is_tagged = _State.BEGINNING, False
        self._false_tags = 0
        self._depth, self._is_in_string, self._is_escaped = 0, False, False  # at the place in an object

    def read_text(self, text: str) -> list[Part]:
        """Take more of the text, and return the parts that are certain now."""
        self.held += text
        return self._read_held(is_last=False)

    def end_text(self) -> list[Part]:
        """Return the parts that are left, as no text follows."""
        return self._read_held(is_last=True)

    def drop_held(self) -> None:
        """Drop what is held back: it was returned as text before, as the text behind it had shown what it is."""
        if self.held and self._state in (_State.BEGINNING, _State.TEXT, _State.HEAD):
            self.held, self._state = "", _State.TEXT

    def _read_held(self, *, is_last: bool) -> list[Part]:
        steps = {
            _State.BEGINNING: self._read_beginning,
            _State.TEXT: self._read_words,
            _State.HEAD: self._read_head,
            _State.ARGUMENTS: self._read_arguments,
            _State.TAIL: self._read_tail,
        }
        parts, before = list[Part](), None
        while before != (before := (self._state, self.held)):
            parts += steps[self._state](is_last)
        return parts

    def _read_beginning(self, is_last: bool) -> list[Part]:
        begun = self.held.lstrip(BETWEEN if self.count else None)
        if self.count:
            self.held = begun
        if not begun:
            self._state = _State.TEXT if is_last else self._state
            return []
        found = HEAD.match(begun[:LONGEST_HEAD])
        if found and found[1] in self._names:
            self._is_tagged = False
            return self._begin_call(found[1], begun[found.end() :])
        if begun.startswith("{") and not found and len(begun) < LONGEST_HEAD:
            if not is_last:
                return []
            if call := self._read_call(begun):
                return self._make_whole_call(call, "")
        self._state = _State.TEXT
        return []

    def _read_words(self, is_last: bool) -> list[Part]:
        place = -1 if self._false_tags >= MOST_FALSE_TAGS else self.held.find(OPEN)
        if place >= 0:
            self._state, end = _State.HEAD, len(self.held[:place].rstrip())
        else:
            end = len(self.held) if is_last else self._find_certain_end()
        words, self.held = self.held[:end], self.held[end:]
        return [Text(words)] if words.strip() or (words and not self.count) else []

    def _find_certain_end(self) -> int:
        """Return the end of the held text without what may belong to a tag: its beginning, and blanks before it."""
        tag = next((size for size in range(len(OPEN) - 1, 0, -1) if self.held.endswith(OPEN[:size])), 0)
        return len(self.held[: len(self.held) - tag].rstrip())

    def _read_head(self, is_last: bool) -> list[Part]:
        start = self.held.index(OPEN) + len(OPEN)
        inner = self.held[start : start + LONGEST_OTHER]
        begun = inner[:LONGEST_HEAD].lstrip()
        found = HEAD.match(begun)
        if found and found[1] in self._names:
            self._is_tagged = True
            skipped = len(inner[:LONGEST_HEAD]) - len(begun)
            return self._begin_call(found[1], self.held[start + skipped + found.end() :])
        whole, close, _ = inner.partition(CLOSE)
        if not close and not is_last and not found and len(inner) < LONGEST_OTHER:
            return []
        if not found and (call := self._read_call(whole)):
            return self._make_whole_call(call, self.held[start + len(whole) + len(close) :])
        # The tag is text, as no call follows it. What stands behind it is read on.
        self._false_tags += 1
        tag, self.held, self._state = self.held[:start], self.held[start:], _State.TEXT
        return [Text(tag)]

    def _begin_call(self, name: str, rest: str) -> list[Part]:
        self._state, self.held, self._depth = _State.ARGUMENTS, rest, 0
        self.count += 1
        return [ToolCall(self.count - 1, name)]

    def _make_whole_call(self, call: tuple[str, str], rest: str) -> list[Part]:
        self._state, self.held = _State.TEXT, rest
        self.count += 1
        name, arguments = call
        return [ToolCall(self.count - 1, name), Arguments(self.count - 1, arguments)]

    def _read_call(self, text: str) -> tuple[str, str] | None:
        """Return the name and the arguments of a whole call whose fields have another order, or None."""
        try:
            call = json.loads(text)
            if not isinstance(call, dict) or call.get("name") not in self._names:
                return None
            arguments: Any = next((call[field] for field in ARGUMENTS if field in call), {})
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            text.encode()  # a lone surrogate could not be sent
            return call["name"], text
        except (TypeError, ValueError, RecursionError):
            return None

    def _read_arguments(self, is_last: bool) -> list[Part]:
        end = self._find_end(self.held)
        part, self.held = self.held[:end], "" if end is None else self.held[end:]
        if end is not None:
            self._state, self._depth = _State.TAIL, 1  # within the object of the call
        return [Arguments(self.count - 1, part)] if part else []

    def _find_end(self, text: str) -> int | None:
        """Return the place behind the brace that closes the object, or None if it is still to come."""
        for place, character in enumerate(text):
            if self._is_escaped:
                self._is_escaped = False
            elif self._is_in_string:
                self._is_escaped, self._is_in_string = character == "\\", character != '"'
            elif character == '"':
                self._is_in_string = True
            elif character in "{}":
                self._depth += 1 if character == "{" else -1
                if not self._depth:
                    return place + 1
        return None

    def _read_tail(self, is_last: bool) -> list[Part]:
        """Drop what closes a call. Another one may follow."""
        if self._is_tagged:
            _, close, rest = self.held.partition(CLOSE)
            self.held = rest if close else self.held[1 - len(CLOSE) :]
            if close:
                self._state = _State.TEXT
        else:
            end = self._find_end(self.held)
            self.held = "" if end is None else self.held[end:]
            if end is not None:
                self._state = _State.BEGINNING
        return []


def list_functions(job: Job) -> list[dict[str, Any]]:
    """Return the functions that the answer to a job may call. A job of another interface may have what is no tool."""
    tools = job.parameters.get("tools")
    functions = [tool.get("function") for tool in tools or () if isinstance(tool, dict)]
    return [each for each in functions if isinstance(each, dict) and isinstance(each.get("name"), str)]


def make_reader(job: Job) -> ToolCallReader:
    return ToolCallReader([function["name"] for function in list_functions(job)])


def make_call(job: Job, call: ToolCall, choice: int = 0) -> dict[str, Any]:
    """Return a call in OpenAI's form, without arguments. Its id is the same each time that the answer is written.

    `choice` is the place of the answer among those of the job.
    """
    function = {"name": call.name, "arguments": ""}
    random = job.id.hex[12:]  # behind the time in the job's id
    return {"id": f"call_{random}{choice:02x}{call.index:02x}", "type": "function", "function": function}


def separate_text_and_calls(job: Job, text: str, *, choice: int) -> tuple[str, list[dict[str, Any]]]:
    """Return the text of an answer without its calls, and the calls in OpenAI's form."""
    words, calls = "", list[dict[str, Any]]()
    reader = make_reader(job)
    for part in reader.read_text(text) + reader.end_text():
        match part:
            case Text():
                words += part.text
            case ToolCall():
                calls.append(make_call(job, part, choice))
            case Arguments():
                calls[part.index]["function"]["arguments"] += part.text
    return words, calls


def make_delta(job: Job, parts: Iterable[Part]) -> dict[str, Any]:
    """Return parts of an answer as the delta of one chunk."""
    words, calls = "", dict[int, dict[str, Any]]()
    for part in parts:
        match part:
            case Text():
                words += part.text
            case ToolCall():
                calls[part.index] = {"index": part.index, **make_call(job, part)}
            case Arguments():
                call = calls.setdefault(part.index, {"index": part.index, "function": {"arguments": ""}})
                call["function"]["arguments"] += part.text
    return {**({"content": words} if words else {}), **({"tool_calls": list(calls.values())} if calls else {})}
