"""The checks of a JSON schema before llguidance compiles it, which would change some, and take seconds for others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from inference.errors import InvalidInput
from inference.values.error_phrases import cut_text
from inference.values.json_schema_parts import iterate_schemas

MOST_IN_ALL_OF = {"multipleOf": 1, "anyOf": 4, "pattern": 8}  # keywords within an allOf, which are multiplied
MOST_PATTERNS = 8  # that one string must match, whose states are multiplied
# The most that the values of multipleOf make together without their decimal points. llguidance looks at each remainder
# that a number may leave, which takes a second for 100,000; of 7,000,000 and its like it looks at a few.
MOST_REMAINDERS = 100_000
FEW_REMAINDERS = 100
# llguidance reads the numbers at these keywords as floats, which hold each integer up to this one.
NUMBERS = ("const", "enum", "exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf")
LARGEST_INTEGER = 2**53 - 1


def check_schema(schema: Mapping[str, Any], where: str) -> None:
    """Raise `InvalidInput` for a schema that llguidance would change, or compile for seconds."""
    references = _References(schema)
    parts = references.list_schemas()
    _refuse_inexact_numbers(parts, where)
    _refuse_remainders(parts, where)
    _refuse_products(parts, where)
    counts = dict[int, int]()
    if any(_count_patterns(part, references, counts) > MOST_PATTERNS for part in parts):
        raise InvalidInput(f"{where}: has a string that must match more than {MOST_PATTERNS} pattern.", field=where)


class _References:
    """The references of a schema, by pointers and anchors within it."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._anchors = {str(part.get("$anchor")): part for part in iterate_schemas(schema)}

    def follow_reference(self, part: Mapping[str, Any]) -> object:
        """Return what a part of the schema refers to; None if that is nothing."""
        if not isinstance(reference := part.get("$ref"), str):
            return None
        pointer = unquote(reference.partition("#")[2])
        if pointer and not pointer.startswith("/"):
            return self._anchors.get(pointer)
        found: Any = self._schema
        for step in pointer.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
            else:
                found = found.get(name) if isinstance(found, dict) else None
        return found

    def list_schemas(self) -> list[Mapping[str, Any]]:
        """Return the schema and all schemas within it, also those that only a reference leads to."""
        found = dict[int, Mapping[str, Any]]()
        roots: list[Mapping[str, Any]] = [self._schema]
        while roots:
            for part in iterate_schemas(roots.pop()):
                if id(part) not in found:
                    found[id(part)] = part
                    target = self.follow_reference(part)
                    roots += [target] if isinstance(target, dict) and id(target) not in found else []
        return list(found.values())


def _refuse_inexact_numbers(parts: Sequence[Mapping[str, Any]], where: str) -> None:
    """Raise `InvalidInput` for a number that llguidance would change."""
    for part in parts:
        for number in _iterate_numbers([part.get(keyword) for keyword in NUMBERS]):
            if isinstance(number, int) and abs(number) > LARGEST_INTEGER:
                message = (
                    f"{where}: has the integer {cut_text(str(number), 40)}, which llguidance would change; send"
                    f" integers from -{LARGEST_INTEGER} to {LARGEST_INTEGER}, or strings."
                )
                raise InvalidInput(message, field=where)
            if not math.isfinite(number):
                raise InvalidInput(f"{where}: has a number that no float holds; send it as a string.", field=where)


def _iterate_numbers(values: list[Any]) -> Iterator[int | float]:
    """Yield the numbers in these values and in all that they hold."""
    for value in values:
        if isinstance(value, int | float):
            yield value
        elif isinstance(value, list | dict):
            yield from _iterate_numbers(list(value.values()) if isinstance(value, dict) else value)


def _refuse_remainders(parts: Sequence[Mapping[str, Any]], where: str) -> None:
    """Raise `InvalidInput` for values of multipleOf with so many remainders that compiling them takes seconds."""
    values = {part["multipleOf"] for part in parts if type(part.get("multipleOf")) in (int, float)}
    if math.prod(map(_count_remainders, values)) > MOST_REMAINDERS:
        message = (
            f"{where}: has a multipleOf, or several of them multiplied, above {MOST_REMAINDERS} without the decimal"
            " point; leave it out, or send a smaller one."
        )
        raise InvalidInput(message, field=where)


def _count_remainders(number: float) -> int:
    whole = format(abs(Decimal(str(number))), "f").replace(".", "").lstrip("0") or "1"
    few = int(whole.rstrip("0"))
    return few if few < FEW_REMAINDERS else int(whole)


def _refuse_products(parts: Sequence[Mapping[str, Any]], where: str) -> None:
    """Raise `InvalidInput` for an allOf whose parts llguidance would multiply, which takes seconds or gigabytes."""
    for part in parts:
        within = list(iterate_schemas({"allOf": part["allOf"]})) if "allOf" in part else []
        for keyword, most in MOST_IN_ALL_OF.items():
            if sum(keyword in each for each in within) > most:
                raise InvalidInput(f"{where}: has an allOf with more than {most} {keyword}.", field=where)


def _count_patterns(part: object, references: _References, counts: dict[int, int]) -> int:
    """Return how many patterns a string must match at most by a part of a schema and by what it refers to."""
    if not isinstance(part, dict):
        return 0
    if id(part) not in counts:
        counts[id(part)] = 0  # where it refers to itself
        every = [*_list_parts(part, "allOf"), references.follow_reference(part)]
        some = [*_list_parts(part, "anyOf"), *_list_parts(part, "oneOf")]
        counts[id(part)] = (
            ("pattern" in part)
            + sum(_count_patterns(each, references, counts) for each in every)
            + max((_count_patterns(each, references, counts) for each in some), default=0)
        )
    return counts[id(part)]


def _list_parts(part: Mapping[str, Any], keyword: str) -> list[Any]:
    return found if isinstance(found := part.get(keyword), list) else []
