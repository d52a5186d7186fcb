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

from inference.models import Job

OPEN, CLOSE = "<tool_call>", "</tool_call>"
HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
LONGEST_HEAD = 400  # characters of a head without a tag, behind which a text is no call
BEGUN_TAG = re.compile("|".join(rf"\s*{re.escape(OPEN[:size])}$" for size in range(len(OPEN), 0, -1)) + r"|\s+$")
ARGUMENTS = ("arguments", "parameters")


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the answer that belongs to no call."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """The beginning of a call."""

    index: int  # of the call within the answer
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A part of the JSON text of a call's arguments."""

    index: int
    text: str


Part = Text | Call | Arguments


class _State(Enum):
    TEXT = auto()
    HEAD = auto()  # of a call, up to its arguments
    ARGUMENTS = auto()
    TAIL = auto()  # of a call, behind its arguments


class ToolCallReader:
    """A reader of one answer, which takes its text in pieces of any length."""

    def __init__(self, names: Collection[str]) -> None:
        """Take the names of the tools: the call of another one is text."""
        self.count = 0  # of calls so far
        self._names = names
        self._state, self._held = _State.TEXT, ""  # text that was taken and is not read yet
        self._is_tagged, self._is_beginning = False, True
        self._depth, self._is_in_string, self._is_escaped = 0, False, False  # at the place in the arguments

    def read_text(self, text: str) -> list[Part]:
        """Take more of the text, and return the parts that are certain now."""
        self._held += text
        return self._read_held(is_last=False)

    def end_text(self) -> list[Part]:
        """Return the parts that are left, as no text follows."""
        return self._read_held(is_last=True)

    def _read_held(self, *, is_last: bool) -> list[Part]:
        steps = {
            _State.TEXT: self._read_words,
            _State.HEAD: self._read_head,
            _State.ARGUMENTS: self._read_arguments,
            _State.TAIL: self._read_tail,
        }
        parts, before = list[Part](), None
        while before != (before := (self._state, self._held)):
            parts += steps[self._state](is_last)
        return parts

    def _read_words(self, is_last: bool) -> list[Part]:
        begun = self._held.lstrip()
        if self._is_beginning and begun.startswith("{"):
            self._state, self._is_tagged = _State.HEAD, False
            return []
        if self._is_beginning and not begun and not is_last:
            return []
        words, tag, rest = self._held.partition(OPEN)
        if tag:
            self._state, self._is_tagged, self._held = _State.HEAD, True, rest
            return self._make_text(words.rstrip())
        held_back = None if is_last else BEGUN_TAG.search(words)
        end = held_back.start() if held_back else len(words)
        self._held = words[end:]
        return self._make_text(words[:end])

    def _make_text(self, words: str) -> list[Part]:
        """Return the text as a part. Blanks behind a call are none."""
        if not words or (self.count and not words.strip()):
            return []
        self._is_beginning = False
        return [Text(words)]

    def _read_head(self, is_last: bool) -> list[Part]:
        found = HEAD.match(self._held)
        if found and found[1] in self._names:
            self._state, self._held, self._depth = _State.ARGUMENTS, self._held[found.end() :], 0
            return [self._begin_call(found[1])]
        inner, close, rest = self._held.partition(CLOSE) if self._is_tagged else (self._held, "", "")
        if not close and not is_last and not found and (self._is_tagged or len(inner) <= LONGEST_HEAD):
            return []
        self._state, self._is_beginning, self._held = _State.TEXT, False, rest
        if call := self._read_call(inner):
            name, arguments = call
            return [self._begin_call(name), Arguments(self.count - 1, arguments)]
        return self._make_text((OPEN if self._is_tagged else "") + inner + close)

    def _begin_call(self, name: str) -> Call:
        self.count += 1
        return Call(self.count - 1, name)

    def _read_call(self, text: str) -> tuple[str, str] | None:
        """Return the name and the arguments of a whole call whose fields have another order, or None."""
        try:
            call = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(call, dict) or not isinstance(name := call.get("name"), str) or name not in self._names:
            return None
        arguments: dict[str, Any] = next((call[field] for field in ARGUMENTS if isinstance(call.get(field), dict)), {})
        return name, json.dumps(arguments, ensure_ascii=False)

    def _read_arguments(self, is_last: bool) -> list[Part]:
        end = self._find_end(self._held)
        part, self._held = self._held[:end], "" if end is None else self._held[end:]
        if end is not None:
            self._state = _State.TAIL
        return [Arguments(self.count - 1, part)] if part else []

    def _find_end(self, text: str) -> int | None:
        """Return the place behind the brace that closes the arguments, or None if it is still to come."""
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
            _, close, rest = self._held.partition(CLOSE)
            if close:
                self._state, self._held = _State.TEXT, rest
        elif left := self._held.lstrip():
            self._state, self._is_beginning, self._held = _State.TEXT, True, left.removeprefix("}")
        return []


def list_names(job: Job) -> list[str]:
    """Return the names of the tools that the answer to a job may call."""
    return [
        name
        for tool in job.parameters.get("tools") or ()
        if isinstance(tool, dict) and isinstance(name := (tool.get("function") or {}).get("name"), str)
    ]


def make_call(job: Job, call: Call, choice: int = 0) -> dict[str, Any]:
    """Return a call in OpenAI's form, without arguments. Its id is the same each time that the answer is written.

    `choice` is the place of the answer among those of the job.
    """
    function = {"name": call.name, "arguments": ""}
    return {"id": f"call_{job.id.hex[:16]}{choice:04x}{call.index:04x}", "type": "function", "function": function}


def read_calls(job: Job, text: str, *, choice: int) -> tuple[str, list[dict[str, Any]]]:
    """Return the text of an answer without its calls, and the calls in OpenAI's form."""
    words, calls = "", list[dict[str, Any]]()
    reader = ToolCallReader(list_names(job))
    for part in reader.read_text(text) + reader.end_text():
        match part:
            case Text():
                words += part.text
            case Call():
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
            case Call():
                calls[part.index] = {"index": part.index, **make_call(job, part)}
            case Arguments():
                call = calls.setdefault(part.index, {"index": part.index, "function": {"arguments": ""}})
                call["function"]["arguments"] += part.text
    return {**({"content": words} if words else {}), **({"tool_calls": list(calls.values())} if calls else {})}
