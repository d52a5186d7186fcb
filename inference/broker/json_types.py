"""kombu's JSON, in which an object may stand for a value of another type."""

from typing import Any

import orjson
from kombu.utils import json


def loads(text: str | bytes) -> Any:
    """At a tenth of kombu's cost where no object is marked as such a value. Raises `ValueError`."""
    mark = b"__type__" if isinstance(text, bytes) else "__type__"
    return json.loads(text) if mark in text else orjson.loads(text)  # type: ignore[operator]  # the mark is of its type
