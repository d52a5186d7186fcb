"""The checks of a JSON schema before llguidance compiles it, which would change some, and take seconds for others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from inference.errors import InvalidInput
from inference.values.error_phrases import cut_text
from inference.values.json_schema_parts import iterate_schemas

MOST_IN_ALL_OF = {"multipleOf": 1, "anyOf": 4, "pattern": 8}  # keywords within an allOf, which are multiplied
# llguidance reads the numbers at these keywords as floats, which hold each integer up to this one.
NUMBERS = ("const", "enum", "exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf")
LARGEST_INTEGER = 2**53 - 1


def check_schema(schema: Mapping[str, Any], where: str) -> None:
    """Raise `InvalidInput` for a schema that llguidance would change, or compile for seconds."""
    _refuse_inexact_numbers(schema, where)
    _refuse_products(schema, where)


def _refuse_inexact_numbers(schema: Mapping[str, Any], where: str) -> None:
    """Raise `InvalidInput` for a number that llguidance would change."""
    for part in iterate_schemas(schema):
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


def _refuse_products(schema: Mapping[str, Any], where: str) -> None:
    """Raise `InvalidInput` for an allOf whose parts llguidance would multiply, which takes seconds or gigabytes."""
    for part in iterate_schemas(schema):
        within = list(iterate_schemas({"allOf": part["allOf"]})) if "allOf" in part else []
        for keyword, most in MOST_IN_ALL_OF.items():
            if sum(keyword in each for each in within) > most:
                raise InvalidInput(f"{where}: has an allOf with more than {most} {keyword}.", field=where)
