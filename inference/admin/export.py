"""What a list shows, as CSV or as JSON lines: read and sent a little at a time."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import UUID

import orjson
from django.db.models import QuerySet
from django.http import StreamingHttpResponse

from inference.models import Job
from inference.store import connections
from inference.submission.lists import NEVER_DUE

CHUNK = 500
MOST = 1_000_000
COLUMNS = (
    "id", "model", "status", "error_code", "error_detail", "priority", "size", "length", "batch", "batch_size",
    "attempts", "recoveries", "worker", "device", "created_at", "published_at", "started_at", "finished_at",
    "expires_at", "owner", "request_id", "bulk", "bulk_index",
)  # fmt: skip
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")  # what a spreadsheet may compute begins with

Record = dict[str, Any]


def answer(jobs: QuerySet[Job], form: str) -> StreamingHttpResponse:
    """Raises `KeyError` for a form that there is none of."""
    content_type, lines = FORMS[form]
    name = f"jobs-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%SZ}.{form}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}
    return StreamingHttpResponse(lines(records(jobs)), content_type=content_type, headers=headers)


def records(jobs: QuerySet[Job]) -> Iterator[Record]:
    """The newest first, each chunk by a query of its own: no cursor is held while a client reads slowly."""
    chosen = jobs.order_by("-pk").values(*COLUMNS)
    last: UUID | None = None
    for _ in range(MOST // CHUNK):
        chunk = list((chosen if last is None else chosen.filter(pk__lt=last))[:CHUNK])
        connections.give_back()  # a client may read it slowly
        for record in chunk:
            if record["published_at"] == NEVER_DUE:  # of a list that runs in parts, which alone have messages
                record["published_at"] = None
        yield from chunk
        if len(chunk) < CHUNK:
            return
        last = chunk[-1]["id"]


class _Line:
    """A file whose last line is what was written last."""

    def write(self, line: str) -> str:
        return line


def _csv(records: Iterable[Record]) -> Iterator[str]:
    writer = csv.writer(_Line())
    yield writer.writerow(COLUMNS)
    for record in records:
        yield writer.writerow([_cell(value) for value in record.values()])


def _cell(value: Any) -> str:
    """Clients write some of these texts: none is a formula."""
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    text = "" if value is None else str(value).replace("\0", "\\0")
    return f"'{text}" if text.lstrip(" ").startswith(FORMULA) and isinstance(value, str) else text


def _json(records: Iterable[Record]) -> Iterator[bytes]:
    for record in records:
        yield orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


FORMS: dict[str, tuple[str, Callable[[Iterable[Record]], Iterator[str | bytes]]]] = {
    "csv": ("text/csv; charset=utf-8", _csv),
    "jsonl": ("application/x-ndjson", _json),
}
