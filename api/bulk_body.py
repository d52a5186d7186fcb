"""The two spellings of a bulk: one JSON document, or JSON lines with the rest in the query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rest_framework.serializers import ValidationError

from api import codec, errors
from api.bodies import MAX_EXPIRES_IN_S, PRIORITIES, BulkBody, LineBody, seconds
from api.errors import ApiError
from inference.bulk import Item
from inference.errors import InferenceError, InvalidInput
from inference.models import Priority

LINE_TYPES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines", "application/jsonlines")

_BULK_BODY = BulkBody()
_LINE_BODY = LineBody()


def read_document(body: bytes) -> dict[str, Any]:
    """The arguments of `bulk.submit`."""
    document = _BULK_BODY.run_validation(codec.loads(body))
    parameters = document.get("parameters")
    return {
        "model": document["model"],
        "items": [Item(inputs=inputs, parameters=parameters) for inputs in document["inputs"]],
        "priority": document.get("priority", Priority.LOW),
        "expires_in_s": document.get("expires_in"),
    }


def read_lines(body: bytes, query: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of `bulk.submit`. Raises `ApiError`; a bad line is an item with an error."""
    if "model" not in query:
        raise ApiError("JSON lines need the model in the query: /v1/jobs/bulk?model=NAME.")
    priority = query.get("priority", "low")
    if priority not in PRIORITIES:
        raise ApiError(f"priority must be one of {', '.join(PRIORITIES)}.")
    return {
        "model": query["model"],
        "items": list(_items(body)),
        "priority": PRIORITIES[priority],
        "expires_in_s": seconds(query, "expires_in", 0.0, MAX_EXPIRES_IN_S) or None,
    }


def _items(body: bytes) -> Iterator[Item]:
    for line in body.split(b"\n"):
        if not line.strip():
            continue
        try:
            document = _LINE_BODY.run_validation(codec.loads(line))
        except ValidationError as error:
            yield Item(error=InvalidInput(errors.in_words(error)))
        except InferenceError as error:
            yield Item(error=error)
        else:
            yield Item(inputs=document["inputs"], parameters=document.get("parameters"))
