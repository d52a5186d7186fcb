"""What an engine answered, as plain finite JSON values."""

from __future__ import annotations

import math
from typing import Any

from inference.errors import BadOutput

_PLAIN = (bool, int, type(None))


def plain(value: Any) -> Any:
    """`value` as JSON values: numpy scalars, arrays and tensors become numbers and lists.

    Raises `BadOutput` on NaN, infinity, text that no database stores, and what JSON cannot carry.
    """
    kind = type(value)
    if kind is list and value and set(map(type, value)) == {float}:
        return _finite_list(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return _finite(float(value))
    if isinstance(value, dict):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if callable(getattr(value, "tolist", None)):  # numpy and torch, without importing either
        return plain(value.tolist())
    if isinstance(value, _PLAIN):
        return value
    raise BadOutput(f"The engine's answer holds a {kind.__name__}; an answer is made of JSON values.")


def size(value: Any) -> int:
    """About how many numbers the JSON `value` is as large as: sixteen characters of a text are one."""
    if isinstance(value, str):
        return 1 + len(value) // 16
    if isinstance(value, dict):
        return 1 + sum(map(size, value.values()))
    if isinstance(value, list):
        return len(value) if value and isinstance(value[0], float) else 1 + sum(map(size, value))
    return 1


def _finite_list(values: list[float]) -> list[float]:
    """A sum is not finite if a number in it is not; a sum can also overflow, so then each is looked at."""
    if not math.isfinite(sum(values)):
        for value in values:
            _finite(value)
    return values


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise BadOutput(f"The engine's answer holds {value}, where a finite number must be.")
    return value


def _text(value: str) -> str:
    if "\0" in value:
        raise BadOutput("The engine's answer holds the character U+0000, which cannot be stored.")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadOutput("The engine's answer holds half of a character, a lone surrogate.") from None
    return value


def _key(key: Any) -> str:
    return _text(str(key))
