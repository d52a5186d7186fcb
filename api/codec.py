"""JSON of requests and answers: parsed strictly, within limits that both databases can store."""

from __future__ import annotations

import re
from typing import Any

import orjson
from django.http import HttpResponse

from api.errors.problems import ApiError

MAX_DEPTH = 64  # levels of lists and objects; SQLite's JSON functions stop at 1,000
MAX_VALUES = 300_000  # of one body, counted before parsing: each takes a quarter of a kilobyte, a few microseconds
TOO_MANY_VALUES = "body_too_large"
CONTENT_TYPE = "application/json"
_STRING = re.compile(rb'"[^"]*"?')  # matches once escaped quotes are removed
_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS


def parse_json(body: bytes) -> Any:
    """Return the value of a JSON body.

    Raises `ApiError` for a body that is not JSON, and for NaN, lone surrogates, NUL characters, deep nesting and too
    many values.
    """
    refuse_too_many_values(body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(_describe_syntax_error(body, error), "invalid_json") from error
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _is_deeper_than(value, MAX_DEPTH):
        raise ApiError(
            f"The body is nested too deeply: at most {MAX_DEPTH} levels of lists and objects.", "invalid_json"
        )
    if b"\\u0000" in body and _holds_nul(value):
        raise ApiError("The body holds the character U+0000, which cannot be stored. Remove it.", "invalid_json")
    return value


def refuse_too_many_values(body: bytes) -> None:
    """Raise `ApiError` for too many values, before any are parsed: ten megabytes of `{},` are a gigabyte as objects."""
    if _count_possible_values(body) <= MAX_VALUES:
        return
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * MAX_VALUES or _count_possible_values(_STRING.sub(b"", plain)) > MAX_VALUES:
        raise ApiError(
            f"The body holds more than {MAX_VALUES:,} values. Send fewer at once, or numbers as base64 in a string.",
            TOO_MANY_VALUES,
        )


def _count_possible_values(body: bytes) -> int:
    """Return the most values that the JSON can hold: each but the first follows a comma or an opening bracket."""
    return sum(map(body.count, (b",", b"[", b"{")))


def _describe_syntax_error(body: bytes, error: orjson.JSONDecodeError) -> str:
    try:
        body.decode()
    except UnicodeDecodeError as wrong:
        return f"The body is not UTF-8 at byte {wrong.start}."
    return f"The body is not valid JSON: {error}."


def write_json(value: object) -> bytes:
    return orjson.dumps(value, option=_OPTIONS)


def make_json_response(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> HttpResponse:
    return HttpResponse(write_json(value), status=status, headers=headers, content_type=CONTENT_TYPE)


def _is_deeper_than(value: object, limit: int) -> bool:
    if not isinstance(value, list | dict):
        return False
    children = value if isinstance(value, list) else value.values()
    return not limit or any(_is_deeper_than(child, limit - 1) for child in children)


def _holds_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any("\0" in key or _holds_nul(item) for key, item in value.items())
    return isinstance(value, list) and any(map(_holds_nul, value))
