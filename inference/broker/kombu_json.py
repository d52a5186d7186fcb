"""The JSON of kombu, in which an object may stand for a value of another type."""

from typing import Any

import orjson
from kombu.utils import json


def loads(text: str | bytes) -> Any:
    """Parse JSON as kombu does, at a tenth of its cost if no object is marked as a value of another type.

    Raises `ValueError`.
    """
    mark = b"__type__" if isinstance(text, bytes) else "__type__"
    return json.loads(text) if mark in text else orjson.loads(text)  # type: ignore[operator]  # both are text, or both bytes
