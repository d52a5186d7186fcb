"""Requests for files and batches in OpenAI's form: pages, a file's form, and a new batch."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import Model, QuerySet

from api.errors.problems import ApiError
from api.requests.bodies import read_list_limit
from api.requests.dialects.base import read_metadata, read_non_null_fields, refuse_unknown_fields
from inference.errors import make_field_error

PAGE, LONGEST_PAGE, MOST_LIMIT = 20, 1_000, 10_000  # a larger limit than the longest page has more pages
EXPIRES_AFTER_S = (3_600, 2_592_000)
LONGEST_WINDOW_H = 7 * 24
WINDOW = re.compile(r"([1-9][0-9]{0,4})([hm])")
HEX = re.compile(r"[0-9a-f]{32}")
FIELDS = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")

R = TypeVar("R", bound=Model)


def read_public_id(text: str, prefix: str) -> UUID | None:
    """Return the id of a row from the id that clients see, such as `file-` and 32 digits; None if it is no such id."""
    digits = text.removeprefix(prefix)
    return UUID(digits) if digits != text and HEX.fullmatch(digits) else None


def load_page(query: Mapping[str, str], rows: QuerySet[R], prefix: str) -> tuple[list[R], bool]:
    """Return the rows of a page, and True if there are more. Raises `ApiError`."""
    most = min(read_list_limit(query, PAGE, MOST_LIMIT), LONGEST_PAGE)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ApiError("order must be asc or desc.", field="order")
    if after := query.get("after"):
        if (last := read_public_id(after, prefix)) is None:
            raise ApiError(f"after must be an id such as {prefix}…, as a page of this list gave it.", field="after")
        rows = rows.filter(**{"pk__gt" if order == "asc" else "pk__lt": last})
    found = list(rows.order_by("pk" if order == "asc" else "-pk")[: most + 1])
    return found[:most], len(found) > most


def read_expiry_s(fields: Mapping[str, Any], where: str) -> int | None:
    """Return the seconds after which a file expires, from `{"anchor": "created_at", "seconds": N}`.

    Raises `InvalidInput`.
    """
    if not fields:
        return None
    least, most = EXPIRES_AFTER_S
    seconds = fields.get("seconds")
    if isinstance(seconds, str) and seconds.isascii() and seconds.isdigit() and len(seconds) < 10:
        seconds = int(seconds)  # a form has texts only
    if fields.get("anchor") != "created_at" or type(seconds) is not int or not least <= seconds <= most:
        raise make_field_error(where, f"must have the anchor created_at, and seconds from {least} to {most}.")
    return seconds


def read_form_expiry_s(fields: Mapping[str, str]) -> int | None:
    names = {name: f"expires_after[{name}]" for name in ("anchor", "seconds")}
    return read_expiry_s({name: fields[key] for name, key in names.items() if key in fields}, "expires_after")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    input_file_id: str
    endpoint: str
    completion_window: str
    window_s: int
    metadata: dict[str, str] | None
    output_expires_after_s: int | None
    body: Mapping[str, Any]


def read_file_batch(document: object, endpoints: Collection[str]) -> BatchRequest:
    """Read the body of a new batch. Raises `InvalidInput`."""
    fields = read_non_null_fields(document)
    refuse_unknown_fields(fields, FIELDS)
    file_id, endpoint, window = (fields.get(name) for name in FIELDS[:3])
    if not isinstance(file_id, str):
        raise make_field_error("input_file_id", "must be the id of a file, such as file-….")
    if not isinstance(endpoint, str) or endpoint not in endpoints:
        raise make_field_error("endpoint", f"must be one of {', '.join(endpoints)}.")
    expiry = fields.get("output_expires_after", {})
    if not isinstance(expiry, dict):
        raise make_field_error("output_expires_after", "must be an object.")
    return BatchRequest(
        input_file_id=file_id,
        endpoint=endpoint,
        completion_window=str(window),
        window_s=_read_window_s(window),
        metadata=read_metadata(fields),
        output_expires_after_s=read_expiry_s(expiry, "output_expires_after"),
        body=fields,
    )


def _read_window_s(window: object) -> int:
    match = WINDOW.fullmatch(window) if isinstance(window, str) else None
    seconds = int(match[1]) * (3600 if match[2] == "h" else 60) if match else 0
    if not 0 < seconds <= LONGEST_WINDOW_H * 3600:
        reason = f"must be 24h, or other hours or minutes such as 30m, up to {LONGEST_WINDOW_H}h."
        raise make_field_error("completion_window", reason)
    return seconds
