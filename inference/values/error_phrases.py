"""The descriptions of given values in errors: in the words of JSON, and short however long a value is."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection

LONGEST_NAME = 100
LONGEST_VALUE = 50
TYPES = {
    bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array", dict: "an object",
    type(None): "null",
}  # fmt: skip


def json_type_of(value: object) -> str:
    """Return the name of a JSON value's type."""
    return TYPES.get(type(value), type(value).__name__)


def describe_value(given: object) -> str:
    """Return a value as JSON; for an array or an object, only the name of its type."""
    if isinstance(given, list | dict):
        return json_type_of(given)
    if isinstance(given, str) and len(given) > LONGEST_VALUE:
        return f"{json.dumps(given[:LONGEST_VALUE], ensure_ascii=False)}..."
    return json.dumps(given, ensure_ascii=False, default=str)


def truncate_name(given: str) -> str:
    return given if len(given) <= LONGEST_NAME else f"{given[:LONGEST_NAME]}..."


def cut_text(text: str, most: int) -> str:
    """Cut a text to at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def suggest_name(given: str, known: Collection[str]) -> str:
    """Return the end of a sentence with the known name that an unknown one was perhaps meant to be."""
    if len(given) <= LONGEST_NAME and (close := difflib.get_close_matches(given, known, 1)):
        return f"did you mean {close[0]}?"
    return f"known are {', '.join(known)}." if known else "none is known here."
