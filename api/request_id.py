"""One id a request: taken over from X-Request-Id or made, and found on the answer, the row and every log line."""

from __future__ import annotations

import logging
import re

import uuid_utils

from inference.telemetry import logs

HEADER = "X-Request-Id"
_ACCEPTED = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def begin(offered: str | None) -> str:
    """The id of the request that this thread now serves: `offered`, unless it is unfit for a log line."""
    chosen = offered if offered and _ACCEPTED.fullmatch(offered) else uuid_utils.uuid7().hex
    logs.begin(request_id=chosen)
    return chosen


def end() -> None:
    logs.begin()


def current() -> str:
    return logs.bound("request_id")


def in_log(record: logging.LogRecord) -> bool:
    """Adds the id to the lines that are logged while a request is served."""
    current_id = current()
    record.request_id = f" request_id={current_id}" if current_id else ""
    return True
