"""The export of a list as CSV or as JSON lines, which is read and sent a little at a time."""

from __future__ import annotations

import csv
import datetime
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from django.db.models import QuerySet
from django.http import StreamingHttpResponse

from inference import clock
from inference.models import Job
from inference.store import connections

CHUNK = 500
MOST = 1_000_000
COLUMNS = (
    "id", "model", "status", "error_code", "error_detail", "error_raised", "priority", "size", "length", "batch",
    "batch_size", "attempts", "recoveries", "worker", "device", "created_at", "published_at", "started_at",
    "finished_at", "expires_at", "owner", "key_start", "route", "request_id", "bulk", "bulk_index",
)  # fmt: skip
# The beginnings of texts that a spreadsheet may compute; the wide ones are computed where East Asian text is typed.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%", "\uff1d", "\uff0b", "\uff0d", "\uff20")

Record = dict[str, Any]

logger = logging.getLogger(__name__)


class Incomplete(Exception):
    """The reason why an export lacks jobs, which the reader of the export is shown."""


@dataclass(frozen=True, slots=True)
class ExportFormat:
    content_type: str
    line: Callable[[Record], str | bytes]
    end: Callable[[Incomplete], str | bytes]  # the last line of an incomplete export
    heading: str = ""


def stream_export(jobs: QuerySet[Job], name: str) -> StreamingHttpResponse:
    """Return these jobs as a streamed response in one of `FORMS`.

    Raises `KeyError` if there is no form of this name.
    """
    form = FORMS[name]
    file = f"jobs-{clock.get_database_time():%Y%m%dT%H%M%SZ}.{name}"
    headers = {"Content-Disposition": f'attachment; filename="{file}"', "X-Content-Type-Options": "nosniff"}
    return StreamingHttpResponse(_stream_lines(jobs, form), content_type=form.content_type, headers=headers)


def _stream_lines(jobs: QuerySet[Job], form: ExportFormat) -> Iterator[str | bytes]:
    """Yield the lines of an export.

    The status was sent long before the end, so the last line states if the export is incomplete.
    """
    count = 0
    if form.heading:
        yield form.heading
    try:
        for record in read_records(jobs):
            yield form.line(record)
            count += 1
    except Incomplete as reason:
        yield form.end(reason)
    except Exception:
        logger.exception("an export broke after %d jobs", count)
        yield form.end(Incomplete(f"the export failed after {count} jobs. The log has the error. Export again."))


def read_records(jobs: QuerySet[Job]) -> Iterator[Record]:
    """Yield the newest jobs first, each chunk by a query of its own: no cursor is held while a client reads slowly.

    Raises `Incomplete` if there are more than `MOST` jobs.
    """
    chosen = jobs.order_by("-pk").values(*COLUMNS, "parts")
    left = chosen
    for _ in range(MOST // CHUNK):
        chunk = list(left[:CHUNK])
        connections.release_connection()  # the client may read the chunk slowly
        for record in chunk:
            if record.pop("parts"):  # only its parts have messages; the version before wrote the year 9000
                record["published_at"] = None
        yield from chunk
        if len(chunk) < CHUNK:
            return
        left = chosen.filter(pk__lt=chunk[-1]["id"])
    if left.exists():
        raise Incomplete(f"there are more than {MOST} jobs. Narrow the filters.")


class _Line:
    """A file whose `write` returns the line that is written."""

    def write(self, line: str) -> str:
        return line


_writer = csv.writer(_Line())


def _format_csv_line(values: Iterable[Any]) -> str:
    return str(_writer.writerow([_format_cell(value) for value in values]))


def _format_cell(value: object) -> str:
    """Return the text of a cell, which is never a formula, as clients write some of these texts."""
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    text = "" if value is None else str(value).replace("\0", "\\0")
    is_formula = text.lstrip(" ").startswith(FORMULA) or text.lstrip().startswith(FORMULA)
    return f"'{text}" if is_formula and isinstance(value, str) else text


def _format_json(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


FORMS = {
    "csv": ExportFormat(
        "text/csv; charset=utf-8",
        line=lambda record: _format_csv_line(record.values()),
        end=lambda reason: _format_csv_line([f"INCOMPLETE: {reason}"]),
        heading=_format_csv_line(COLUMNS),
    ),
    "jsonl": ExportFormat(
        "application/x-ndjson", line=_format_json, end=lambda reason: _format_json({"incomplete": str(reason)})
    ),
}
