"""An engine's answers as plain finite JSON values."""

import math
from collections.abc import Iterator
from typing import Any

from inference.errors import BadOutput

_PLAIN = (bool, type(None))
MAX_DEPTH = 64  # lists and objects within each other; the web process cannot write 255


def convert_to_json(value: Any, room: int = MAX_DEPTH) -> Any:
    """Return `value` as JSON values: numpy scalars, arrays and tensors become numbers and lists.

    Raises `BadOutput` if there are NaN, infinity, integers beyond 64 bits, text that no database stores, lists and
    objects more than `room` deep, or anything that JSON cannot carry.
    """
    kind = type(value)
    if kind is list and value and room and set(map(type, value)) == {float}:
        return _check_finite_list(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, str):
        return _check_text(value)
    if isinstance(value, float):
        return _check_finite(float(value))
    if isinstance(value, dict):
        room = _reduce_room(room)
        return {_check_text(str(key)): convert_to_json(item, room) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        room = _reduce_room(room)
        return [convert_to_json(item, room) for item in value]
    if callable(getattr(value, "tolist", None)):  # numpy and torch, without importing either
        return convert_to_json(value.tolist(), room)
    if isinstance(value, int):
        return _check_integer(value)
    raise BadOutput(f"The engine's answer holds a {kind.__name__}; an answer is made of JSON values.")


def pair_leaves(first: object, second: object) -> Iterator[tuple[Any, Any]]:
    """Yield the leaves of two JSON values side by side; where their shapes differ, both parts as a whole."""
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        for key in first:
            yield from pair_leaves(first[key], second[key])
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for left, right in zip(first, second, strict=True):
            yield from pair_leaves(left, right)
    else:
        yield first, second


def estimate_size_in_numbers(value: object) -> int:
    """Estimate how many numbers are as large as the JSON `value`: 24 characters of a text count as one."""
    if isinstance(value, str):
        return 1 + len(value) // 24
    if isinstance(value, dict):
        return 1 + sum(map(estimate_size_in_numbers, value.values()))
    if isinstance(value, list):
        return len(value) if set(map(type, value)) == {float} else 1 + sum(map(estimate_size_in_numbers, value))
    return 1


def _check_finite_list(values: list[float]) -> list[float]:
    """Return the numbers if all are finite. Raises `BadOutput` if one is not.

    A sum is not finite if one of its numbers is not. It can also overflow, so each number is checked then.
    """
    if not math.isfinite(sum(values)):
        for value in values:
            _check_finite(value)
    return values


def _check_finite(value: float) -> float:
    if not math.isfinite(value):
        raise BadOutput(f"The engine's answer holds {value}, where a finite number must be.")
    return value


def _reduce_room(room: int) -> int:
    if not room:
        raise BadOutput(f"The engine's answer is nested too deeply: at most {MAX_DEPTH} levels of lists and objects.")
    return room - 1


def _check_integer(value: int) -> int:
    """Return the integer. Raises `BadOutput` beyond 64 bits, as the database would return it rounded."""
    if not -(2**63) <= value < 2**64:
        raise BadOutput("The engine's answer holds an integer beyond 64 bits: give it as a text.")
    return value


def _check_text(value: str) -> str:
    if "\0" in value:
        raise BadOutput("The engine's answer holds the character U+0000, which cannot be stored.")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadOutput("The engine's answer holds half of a character, a lone surrogate.") from None
    return value
