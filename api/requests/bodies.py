"""The bodies of requests, their queries, and the headers Prefer and Idempotency-Key."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from api import codec
from api.errors.problems import ApiError
from api.requests.fields import Anything, Body, Choice, Seconds, StrictArray, StrictFlag, StrictObject, StrictString
from inference.catalog.lookup import get_spec
from inference.errors import make_field_error
from inference.submission.submissions import Submission
from inference.values.error_phrases import suggest_name, truncate_name
from inference.values.priority import Priority

PRIORITIES = {priority.name.lower(): priority for priority in Priority}
MAX_WAIT_S = 300.0
DEFAULT_TIMEOUT_S = 30.0
EXPIRES_IN_S = (0.001, 7 * 86_400.0)
_LIMIT = re.compile(r"[1-9][0-9]{0,4}")
_NUMBER = re.compile(r"\d{1,6}(\.\d{1,6})?")
KEY = re.compile(r"[\x21-\x7e]{1,255}")
MOST_IDS = 500
_PREFER_PLAIN = re.compile(r"(?:^|,)\s*outputs\s*=\s*\"?plain\"?\s*(?=$|[,;])", re.IGNORECASE)
_PREFER_WAIT = re.compile(r"(?:^|,)\s*wait\s*=\s*\"?(\d{1,6})\"?\s*(?=$|[,;])", re.IGNORECASE)


class JobBody(Body):
    """One job."""

    elsewhere = dict.fromkeys(("wait", "timeout"), "to wait for the job, send the header Prefer: wait=10.")

    model = StrictString(max_length=100, help_text="A name of GET /v1/models.")
    inputs = Anything(help_text="One input, or a list of several that form one job.")
    parameters = StrictObject(required=False, help_text="What the model allows: see GET /v1/models/{name}.")
    priority = Choice(PRIORITIES, required=False, help_text="What runs first; normal is the default.")
    expires_in = Seconds(*EXPIRES_IN_S, required=False, help_text="Seconds; a job not started by then expires.")
    webhook = StrictString(
        required=False, help_text="Address that is called when the job is finished, if webhooks are configured."
    )


class WaitBody(Body):
    """Jobs to wait for, any of them."""

    elsewhere = dict.fromkeys(("wait", "timeout"), "it goes in the query: ?wait=10.")

    ids = StrictArray(help_text="Ids of jobs, at most 500.")


class BulkBody(Body):
    """Many jobs."""

    model = StrictString(max_length=100, help_text="A name of GET /v1/models.")
    inputs = StrictArray(help_text="Inputs, a job each.")
    parameters = StrictObject(required=False, help_text="For all of them.")
    priority = Choice(PRIORITIES, required=False, help_text="What runs first; low is the default here.")
    expires_in = Seconds(*EXPIRES_IN_S, required=False, help_text="Seconds.")


class LineBody(Body):
    """One line of JSON lines."""

    inputs = Anything()
    parameters = StrictObject(required=False)


class RunBody(Body):
    """A call as Hugging Face clients send it. For feature-extraction, parameters may also be at the root."""

    elsewhere = {
        **dict.fromkeys(("wait", "timeout"), "timeout goes in the query: ?timeout=10."),
        "model": "the address names the model.",
        **dict.fromkeys(("priority", "expires_in", "webhook"), "post to /v1/jobs to use it."),
    }

    inputs = Anything(help_text="One input, or a list of several.")
    parameters = StrictObject(required=False, help_text="What the model allows: see GET /v1/models/{name}.")
    options = StrictObject(required=False, help_text="Taken from older Hugging Face clients, and without effect.")
    stream = StrictFlag(required=False, help_text="true: text as it is generated, as server-sent events.")


def is_json(media_type: str) -> bool:
    return media_type == codec.CONTENT_TYPE or media_type.endswith("+json")


def require_json(media_type: str) -> None:
    """Raise `ApiError` for a body that is not JSON. A body without a media type is taken for JSON."""
    if media_type and not is_json(media_type):
        raise ApiError(
            f"Send JSON with Content-Type: application/json, not {media_type[:100]}.", "unsupported_media_type"
        )


def refuse_form(media_type: str) -> None:
    """Raise `ApiError` for a multipart form, whose body is not the bytes of a file."""
    if media_type.startswith("multipart/"):
        raise ApiError(
            f"Send the file's bytes as the body, or base64 of them as inputs in JSON, not {media_type[:100]}.",
            "unsupported_media_type",
        )


def read_seconds(query: Mapping[str, str], name: str, bounds: tuple[float, float] = (0.0, MAX_WAIT_S)) -> float | None:
    """Return a number of seconds from the query, or None if it is not there.

    Raises `ApiError` if it is no such number, or is outside `bounds`.
    """
    text = query.get(name)
    if text is None:
        return None
    least, most = bounds
    if not _NUMBER.fullmatch(text) or not text.isascii() or not least <= float(text) <= most:
        raise ApiError(
            f"{name} must be a number of seconds from {least:g} to {most:.0f}, such as ?{name}=10.", field=name
        )
    return float(text)


def read_preferred_wait(header: str) -> int | None:
    """Return N of `Prefer: wait=N` (RFC 7240), at most `MAX_WAIT_S`, or None if no such preference can be read."""
    match = _PREFER_WAIT.search(header)
    return min(int(match[1]), int(MAX_WAIT_S)) if match else None


def cancels_on_disconnect(query: Mapping[str, str]) -> bool:
    """Return True if the query has `on_disconnect=cancel`. Raises `ApiError` for any other value of it."""
    value = query.get("on_disconnect")
    if value not in (None, "cancel"):
        raise ApiError("on_disconnect must be cancel; without it the job goes on.", field="on_disconnect")
    return value is not None


def read_query_flag(query: Mapping[str, str], name: str) -> bool:
    """Return True if the query's parameter is `true`. Raises `ApiError` if it is neither true, false nor missing."""
    if query.get(name, "false") not in ("true", "false"):
        raise ApiError(f"{name} must be true or false.", field=name)
    return query.get(name) == "true"


def read_query_integer(query: Mapping[str, str], name: str, default: int) -> int:
    """Return a parameter that is a whole number from 0, or `default`. Raises `ApiError`."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise ApiError(f"{name}: must be a whole number from 0, not {text[:100]!r}.", field=name)
    return int(text)


def read_list_limit(query: Mapping[str, str], default: int, most: int) -> int:
    """Return how many entries of a list are asked for. Raises `ApiError`."""
    text = query.get("limit", str(default))
    if not _LIMIT.fullmatch(text) or int(text) > most:
        raise ApiError(f"limit must be a whole number from 1 to {most}.", field="limit")
    return int(text)


def prefers_plain_outputs(header: str) -> bool:
    """Return True if the header says `Prefer: outputs=plain`."""
    return bool(_PREFER_PLAIN.search(header))


def read_job_ids(values: list[Any]) -> list[UUID]:
    """Return the ids of a validated `WaitBody`, each once. Raises `InvalidInput`."""
    if not 1 <= len(values) <= MOST_IDS:
        raise make_field_error("ids", f"must be from 1 to {MOST_IDS} ids.")
    try:
        return list(dict.fromkeys(map(UUID, values)))
    except (ValueError, AttributeError, TypeError):
        raise make_field_error("ids", "must be the ids of jobs, which are UUIDs.") from None


def read_idempotency_key(header: str | None) -> str | None:
    """Return the key of an Idempotency-Key header, or None without a header.

    Quotes are part of the key: the draft standard wants them, and few clients send them. Raises `ApiError` if the key
    is not 1 to 255 visible ASCII characters.
    """
    if header is None:
        return None
    if not KEY.fullmatch(header):
        raise ApiError("Idempotency-Key must be 1 to 255 visible ASCII characters, such as a UUID.")
    return header


def refuse_unknown_query_parameters(
    query: Mapping[str, str], names: Collection[str], elsewhere: Mapping[str, str]
) -> None:
    """Raise `ApiError` for a parameter that is not in `names`: a misspelt one would be ignored otherwise."""
    if unknown := next((name for name in query if name not in names), None):
        hint = elsewhere.get(unknown) or suggest_name(unknown, names)
        shown = truncate_name(unknown)
        raise ApiError(f"Unknown query parameter {shown!r}; {hint}", field=shown)


def make_submission(body: Mapping[str, Any]) -> Submission:
    """Return the submission of a validated `JobBody`. Raises `UnknownModel`."""
    return Submission(
        spec=get_spec(body["model"]),
        inputs=body["inputs"],
        parameters=body.get("parameters") or {},
        priority=body.get("priority", Priority.NORMAL),
        expires_in_s=body.get("expires_in"),
        webhook=body.get("webhook", ""),
    )
