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

MOST_PATTERNS = 8  # that one string must match, or that stand within an allOf, whose states are multiplied
MOST_CHOICES = 256  # ways to choose an option of each anyOf within an allOf: it is multiplied out
# The most that the values of multipleOf of one number make together without their decimal points. llguidance looks at
# each remainder that a number may leave, which takes a second for 100,000; of 7,000,000 and its like it looks at a few
# where the numbers have no bounds.
MOST_REMAINDERS = 100_000
FEW_REMAINDERS = 100
BOUNDS = ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum")
# llguidance reads the numbers at these keywords as floats, which hold each integer up to this one.
NUMBERS = ("const", "enum", "multipleOf", *BOUNDS)
LARGEST_INTEGER = 2**53 - 1


def check_schema(schema: Mapping[str, Any], where: str) -> None:
    """Raise `InvalidInput` for a schema that llguidance would change, or compile for seconds."""
    references = _References(schema)
    parts = references.list_schemas()
    _refuse_inexact_numbers(parts, where)
    _refuse_remainders(parts, references, where)
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


def _refuse_remainders(parts: Sequence[Mapping[str, Any]], references: _References, where: str) -> None:
    """Raise `InvalidInput` for values of multipleOf with so many remainders that compiling them takes seconds."""
    is_bounded = any(keyword in part for part in parts for keyword in BOUNDS)
    own = {id(part): _count_remainders(part.get("multipleOf"), is_bounded=is_bounded) for part in parts}
    products = dict[int, int]()
    for part in parts:
        # An allOf may have two schemas for one property: what is within it is multiplied, whatever it is of.
        within = math.prod(own[id(each)] for each in _iterate_all_of(part))
        if max(within, _multiply_remainders(part, references, own, products)) > MOST_REMAINDERS:
            message = (
                f"{where}: has a number whose multipleOf, or several of them multiplied, are above {MOST_REMAINDERS}"
                " without the decimal point; leave it out, or send a smaller one."
            )
            raise InvalidInput(message, field=where)


def _count_remainders(number: object, *, is_bounded: bool) -> int:
    if type(number) not in (int, float):
        return 1
    whole = format(abs(Decimal(str(number))), "f").replace(".", "").lstrip("0") or "1"
    few = int(whole.rstrip("0"))
    return few if few < FEW_REMAINDERS and not is_bounded else int(whole)


def _multiply_remainders(
    part: object, references: _References, own: Mapping[int, int], products: dict[int, int]
) -> int:
    """Return the product of the remainders of one number by a part of a schema, its choices and its references."""
    if not isinstance(part, dict):
        return 1
    if id(part) not in products:
        products[id(part)] = 1  # where it refers to itself
        parts = [each for keyword in ("allOf", "anyOf", "oneOf") for each in _list_parts(part, keyword)]
        parts.append(references.follow_reference(part))
        product = math.prod(_multiply_remainders(each, references, own, products) for each in parts)
        products[id(part)] = product * own.get(id(part), 1)
    return products[id(part)]


def _refuse_products(parts: Sequence[Mapping[str, Any]], where: str) -> None:
    """Raise `InvalidInput` for an allOf whose parts llguidance would multiply, which takes seconds or gigabytes."""
    for part in parts:
        within = list(_iterate_all_of(part))
        if sum("pattern" in each for each in within) > MOST_PATTERNS:
            raise InvalidInput(f"{where}: has an allOf with more than {MOST_PATTERNS} pattern.", field=where)
        options = (len(_list_parts(each, keyword)) for each in within for keyword in ("anyOf", "oneOf"))
        if math.prod(filter(None, options)) > MOST_CHOICES:
            message = f"{where}: has an allOf whose anyOf have more than {MOST_CHOICES} options multiplied."
            raise InvalidInput(message, field=where)


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


def _iterate_all_of(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas of an allOf, and all schemas within them."""
    for each in _list_parts(part, "allOf"):
        yield from iterate_schemas(each) if isinstance(each, dict) else ()


def _list_parts(part: Mapping[str, Any], keyword: str) -> list[Any]:
    return found if isinstance(found := part.get(keyword), list) else []
