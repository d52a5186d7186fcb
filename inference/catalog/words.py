"""How an answer speaks of what a request said: in JSON's words, and shortly, however long it was."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection
from typing import Any

LONGEST_NAME = 100
LONGEST_VALUE = 50
TYPES = {
    bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array", dict: "an object",
    type(None): "null",
}  # fmt: skip


def type_of(value: Any) -> str:
    """Of a JSON value."""
    return TYPES.get(type(value), type(value).__name__)


def value(given: Any) -> str:
    """As JSON; of an array or object only that it is one."""
    if isinstance(given, list | dict):
        return type_of(given)
    if isinstance(given, str) and len(given) > LONGEST_VALUE:
        return f"{json.dumps(given[:LONGEST_VALUE], ensure_ascii=False)}..."
    return json.dumps(given, ensure_ascii=False, default=str)


def name(given: str) -> str:
    return given if len(given) <= LONGEST_NAME else f"{given[:LONGEST_NAME]}..."


def shorten(text: str, most: int) -> str:
    """With at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def hint(given: str, known: Collection[str]) -> str:
    """What an unknown name was perhaps meant to be, as the end of a sentence."""
    if len(given) <= LONGEST_NAME and (close := difflib.get_close_matches(given, known, 1)):
        return f"did you mean {close[0]}?"
    return f"known are {', '.join(known)}." if known else "none is known here."
