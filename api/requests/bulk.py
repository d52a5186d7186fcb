"""The two forms of a bulk: one JSON document, or JSON lines with all other fields in the query."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice

from django.conf import settings
from rest_framework.serializers import ValidationError

from api import codec
from api.errors import problems
from api.errors.problems import ApiError
from api.requests.bodies import EXPIRES_IN_S, PRIORITIES, BulkBody, LineBody, read_seconds
from inference.catalog.lookup import get_spec
from inference.errors import InferenceError, InvalidInput
from inference.submission import bulk
from inference.submission.submissions import BulkItem, BulkSubmission
from inference.values.priority import Priority

LINE_TYPES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines", "application/jsonlines")

FIELDS = ("model", "priority", "expires_in")  # in the query with JSON lines, in the body otherwise

_BULK_BODY = BulkBody()
_LINE_BODY = LineBody()
_LINE_FIELDS = set(_LINE_BODY.accepted_names)
_LINE = re.compile(rb"\S[^\n]*")


def read_bulk_from_document(body: bytes) -> BulkSubmission:
    """Read a bulk from one JSON document. Raises `InvalidInput`, `UnknownModel`."""
    document = _BULK_BODY.run_validation(codec.parse_json(body))
    bulk.check_size(len(document["inputs"]))
    parameters = document.get("parameters")
    return BulkSubmission(
        spec=get_spec(document["model"]),
        items=[BulkItem(inputs=inputs, parameters=parameters) for inputs in document["inputs"]],
        priority=document.get("priority", Priority.LOW),
        expires_in_s=document.get("expires_in"),
    )


def read_bulk_from_lines(body: bytes, query: Mapping[str, str]) -> BulkSubmission:
    """Read a bulk from JSON lines. A line that is not valid becomes an item with an error.

    Raises `ApiError`, `UnknownModel`.
    """
    if "model" not in query:
        raise ApiError("JSON lines need the model in the query: /v1/jobs/bulk?model=NAME.")
    priority = query.get("priority", "low")
    if priority not in PRIORITIES:
        raise ApiError(f"priority must be one of {', '.join(PRIORITIES)}.")
    return BulkSubmission(
        spec=get_spec(query["model"]),
        items=[_read_item(line) for line in _split_lines(body)],
        priority=PRIORITIES[priority],
        expires_in_s=read_seconds(query, "expires_in", EXPIRES_IN_S),
    )


def _split_lines(body: bytes) -> list[bytes]:
    """Return the lines that are not blank, counted before any of them is parsed. Raises `InvalidInput`, `ApiError`."""
    codec.refuse_too_many_values(body)
    lines = [found[0] for found in islice(_LINE.finditer(body), settings.MAX_BULK_INPUTS + 1)]
    bulk.check_size(len(lines))
    return lines


def _read_item(line: bytes) -> BulkItem:
    try:
        document = codec.parse_json(line)
        if not _is_valid_line(document):
            _LINE_BODY.run_validation(document)
    except ValidationError as error:
        return BulkItem(error=InvalidInput(problems.describe_validation_error(error)))
    except InferenceError as error:
        return BulkItem(error=error)
    return BulkItem(inputs=document["inputs"], parameters=document.get("parameters"))


def _is_valid_line(document: object) -> bool:
    """Return True if `LineBody` would accept this document, at a tenth of its cost, as there may be thousands of lines.

    `LineBody` says what is wrong with any other document.
    """
    return (
        isinstance(document, dict)
        and document.keys() <= _LINE_FIELDS
        and document.get("inputs") is not None
        and isinstance(document.get("parameters", {}), dict)
    )
