"""How facts look in the admin. Everything a client sent is escaped here, invisible characters included."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from inference.telemetry.visible import visible as visible  # noqa: PLC0414 - of this module, too

LONGEST_TEXT = 20_000  # characters of one input or output that a page shows
LONGEST_NUMBERS = 8  # of a list of numbers
LARGEST = 1e300  # beyond it a whole number may be no float
NONE = "-"


def fact(description: str, attribute: str, show: Callable[[Any], Any] = str) -> Any:
    """A column of a list, or a line of a page: a row's attribute as `show` tells it, `NONE` where there is none."""

    def shown(_: admin.ModelAdmin[Any], row: Any) -> Any:
        value = getattr(row, attribute)
        return NONE if value is None else show(value) or NONE

    return admin.display(shown, description=description)


def badge(state: str) -> SafeString:
    return format_html('<span class="badge badge-{}">{}</span>', state.replace(" ", "-"), state)


def duration(value: datetime.timedelta | float | None) -> str:
    """12 ms, 3.4 s, 5 min, 2 h, 3 d."""
    if value is None:
        return NONE
    seconds = value.total_seconds() if isinstance(value, datetime.timedelta) else value
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def ago(moment: datetime.datetime) -> SafeString:
    return format_html(
        '<span class="nowrap" title="{}">{}</span>', moment.isoformat(" ", "milliseconds"), _relative(moment)
    )


def at(moment: datetime.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d} UTC, {_relative(moment)}"


def _relative(moment: datetime.datetime) -> str:
    age_s = (timezone.now() - moment).total_seconds()
    return f"{duration(age_s)} ago" if age_s >= 0 else f"in {duration(-age_s)}"


def pretty_json(value: Any) -> SafeString:
    text = visible(json.dumps(_folded(value), indent=2, ensure_ascii=False))
    if len(text) > LONGEST_TEXT:
        text = f"{text[:LONGEST_TEXT]}\n... {len(text) - LONGEST_TEXT:,} more characters"
    return format_html('<pre class="data">{}</pre>', text)


def block(text: str) -> SafeString | str:
    """Text of several lines, as it was written."""
    return format_html('<pre class="data">{}</pre>', visible(text[:LONGEST_TEXT])) if text else ""


def _folded(value: Any) -> Any:
    """Long lists of numbers as one line of their head: an embedding is not read number by number."""
    if isinstance(value, dict):
        return {key: _folded(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > LONGEST_NUMBERS and all(isinstance(item, int | float) for item in value):
        head = ", ".join(f"{item:.6g}" if abs(item) < LARGEST else f"{item!s:.20}" for item in value[:LONGEST_NUMBERS])
        return f"[{head}, ... {len(value)} numbers]"
    return [_folded(item) for item in value]
