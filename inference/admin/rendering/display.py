"""The display of facts in the admin, with everything escaped that a client sent, invisible characters included."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString

from inference import clock
from inference.telemetry.control_characters import escape_text as escape_text  # noqa: PLC0414 - of this module, too

LONGEST_TEXT = 20_000  # characters of one input or output that a page shows
LONGEST_NUMBERS = 8  # numbers of a list that are shown
LARGEST = 1e300  # an integer beyond it may not fit in a float
NONE = "-"
T = TypeVar("T")


def make_column(
    description: str, attribute: str, show: Callable[[Any], Any] = str, *, ordering: str | None = None
) -> Any:
    """Return a column of a list or a line of a page: a row's attribute as `show` displays it, or `NONE`."""

    def show_attribute(_: admin.ModelAdmin[Any], row: object) -> Any:
        value = getattr(row, attribute)
        return NONE if value is None else show(value) or NONE

    return admin.display(show_attribute, description=description, ordering=ordering)


def render_badge(state: str) -> SafeString:
    return format_html('<span class="badge badge-{}">{}</span>', state.replace(" ", "-"), state)


def draw_meter(value: int | None, largest: int) -> SafeString:
    """Draw a bar that is yellow from half of the largest value on, and red when nearly nothing is left."""
    return format_html(
        '<meter class="meter" max="{}" low="{}" high="{}" optimum="0" value="{}"></meter>',
        largest,
        largest * 0.5,
        largest * 0.9,
        value or 0,
    )


def format_duration(value: datetime.timedelta | float | None) -> str:
    """Return a duration such as 12 ms, 3.4 s, 5 min, 2 h or 3 d."""
    if value is None:
        return NONE
    seconds = value.total_seconds() if isinstance(value, datetime.timedelta) else value
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def format_size(size: int) -> str:
    """Return a number of bytes such as 12 bytes, 3.4 KiB, 91 MiB or 2.0 GiB."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.0f} {unit}" if size >= 10 * factor else f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def render_relative_time(moment: datetime.datetime) -> SafeString:
    return format_html(
        '<span class="nowrap" title="{}">{}</span>',
        moment.isoformat(" ", "milliseconds"),
        _format_relative_time(moment),
    )


def format_moment(moment: datetime.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d} UTC, {_format_relative_time(moment)}"


def _format_relative_time(moment: datetime.datetime) -> str:
    age_s = (clock.get_database_time() - moment).total_seconds()
    return f"{format_duration(age_s)} ago" if age_s >= 0 else f"in {format_duration(-age_s)}"


def format_json(value: object) -> SafeString:
    """Return a value as indented JSON, as much of it as a page shows.

    The rest is not even looked at, and may be megabytes.
    """
    budget = _Budget(LONGEST_TEXT)
    whole = json.dumps(budget.take(value), indent=2, ensure_ascii=False)
    text = escape_text(whole[:LONGEST_TEXT])
    if budget.left < 0 or len(whole) > LONGEST_TEXT:
        text += "\n... and more, which the API returns"
    return format_html('<pre class="data">{}</pre>', text)


def render_block(text: str) -> SafeString | str:
    """Return text of several lines as it was written."""
    return format_html('<pre class="data">{}</pre>', escape_text(text[:LONGEST_TEXT])) if text else ""


class _Budget:
    """A number of characters, and the part of a value that fits in it, or in a little more."""

    def __init__(self, characters: int) -> None:
        self.left = characters

    def take(self, value: object) -> Any:
        """Return what fits of a value, with a long list of numbers as one line of its first numbers.

        An embedding is not read number by number.
        """
        if isinstance(value, list) and len(value) > LONGEST_NUMBERS and all(isinstance(n, int | float) for n in value):
            value = _format_first_numbers(value)
        if isinstance(value, dict):
            return {self._cut(key): self.take(item) for key, item in self._take_items(value.items())}
        if isinstance(value, list):
            return [self.take(item) for item in self._take_items(value)]
        return self._cut(value) if isinstance(value, str) else value

    def _take_items(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            self.left -= 1  # the line of the item
            if self.left < 0:
                return
            yield item

    def _cut(self, text: str) -> str:
        most, self.left = max(self.left, 0), self.left - len(text)
        return text[:most]


def _format_first_numbers(numbers: list[Any]) -> str:
    head = ", ".join(f"{item:.6g}" if abs(item) < LARGEST else f"{item!s:.20}" for item in numbers[:LONGEST_NUMBERS])
    return f"[{head}, ... {len(numbers)} numbers]"
