"""The id of a request: taken from X-Request-Id or made, and found on the answer, the job's row and every log line."""

from __future__ import annotations

import logging
import re

import uuid_utils

from inference.telemetry import logs

HEADER = "X-Request-Id"
_ACCEPTED = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def begin_request(offered: str | None) -> str:
    """Set and return the id of the request that this thread now serves.

    It is `offered`, or a new id if `offered` is missing or unfit for a log line.
    """
    chosen = offered if offered and _ACCEPTED.fullmatch(offered) else uuid_utils.uuid7().hex
    logs.replace_bound_ids(request_id=chosen)
    return chosen


def end_request() -> None:
    logs.replace_bound_ids()


def get_request_id() -> str:
    return logs.get_bound_id("request_id")


def add_to_log_record(record: logging.LogRecord) -> bool:
    """Add the id to a line that is logged while a request is served. Returns True, so that no line is filtered."""
    current_id = get_request_id()
    record.request_id = f" request_id={current_id}" if current_id else ""
    return True
