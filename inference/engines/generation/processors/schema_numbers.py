"""The numbers of a JSON schema, of which llguidance would change some."""

import math
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from inference.errors import InvalidInput
from inference.values.error_phrases import cut_text
from inference.values.json_schema_parts import iterate_schemas

# llguidance reads the numbers at these keywords as floats, which hold each integer up to this one.
NUMBERS = ("const", "enum", "exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf")
LARGEST_INTEGER = 2**53 - 1


def refuse_inexact_numbers(schema: Mapping[str, Any], where: str) -> None:
    """Raise `InvalidInput` for a schema with a number that llguidance would change."""
    for part in _list_schemas(schema):
        for number in _iterate_numbers([part.get(keyword) for keyword in NUMBERS]):
            if isinstance(number, int) and abs(number) > LARGEST_INTEGER:
                message = (
                    f"{where}: has the integer {cut_text(str(number), 40)}, which llguidance would change; send"
                    f" integers from -{LARGEST_INTEGER} to {LARGEST_INTEGER}, or strings."
                )
                raise InvalidInput(message, field=where)
            if not math.isfinite(number):
                raise InvalidInput(f"{where}: has a number that no float holds; send it as a string.", field=where)


def _list_schemas(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a schema and all schemas within it, also those that only a reference by a pointer leads to."""
    found = dict[int, Mapping[str, Any]]()
    roots = [schema]
    while roots:
        if id(root := roots.pop()) in found:
            continue
        for part in iterate_schemas(root):
            found[id(part)] = part
            target = _follow_pointer(schema, part.get("$ref"))
            roots += [target] if isinstance(target, dict) else []
    return list(found.values())


def _follow_pointer(schema: Mapping[str, Any], reference: object) -> object:
    """Return what a reference refers to in a schema; None if that is nothing, or has the name of an anchor."""
    if not isinstance(reference, str):
        return None
    found: Any = schema
    for step in unquote(reference.partition("#")[2]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found


def _iterate_numbers(values: list[Any]) -> Iterator[int | float]:
    """Yield the numbers in these values and in all that they hold."""
    for value in values:
        if isinstance(value, int | float):
            yield value
        elif isinstance(value, list | dict):
            yield from _iterate_numbers(list(value.values()) if isinstance(value, dict) else value)
