"""The fence: who may run a job, and record its outcome.

A batch is a UUID. Claiming writes it on rows that may be claimed; recording is conditional on it. Zero rows changed
means that somebody else owns the job now, and the outcome is dropped.
"""

from __future__ import annotations

import datetime
import functools
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models.functions import Now

from inference.json_field import storable
from inference.models import Job, Status
from inference.store import rows
from inference.store.rows import marks


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one job: `output`, or an error's code and detail."""

    job_id: UUID
    output: Any = None
    error_code: str = ""
    error_detail: str = ""

    @property
    def status(self) -> Status:
        return Status.FAILED if self.error_code else Status.SUCCEEDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What running a job takes of its row."""

    id: UUID
    model: str
    inputs: Any
    parameters: dict[str, Any]
    size: int
    length: int
    created_at: datetime.datetime


LEASE_MARGIN_S = 20.0  # past the model's time limit, which the worker itself enforces

_CLAIMED = tuple(field.name for field in fields(Claimed))


def claim(
    ids: Collection[UUID],
    batch: UUID,
    *,
    model: str,
    time_limit_s: float,
    alone: bool = False,
    takes_over: Collection[UUID],
    worker: UUID,
    device: str,
) -> list[Claimed]:
    """Claim what may be claimed of `ids` for `batch`, and return it with its inputs, the oldest first.

    `LEASE_MARGIN_S` past the time limit of this run it may be given back.

    Whose next loss is its last is claimed by who runs it `alone` only: no crash of another's input is to end it.

    `takes_over` names batches of this worker that are known to be over: their rows are claimed though running. So are
    its own: the answer to an earlier claim may have been lost on its way.
    """
    takes_over = (*takes_over, batch)
    lease_sql, lease = _in_seconds(time_limit_s + LEASE_MARGIN_S, connection.vendor)
    with connection.cursor() as cursor:
        cursor.execute(
            _claim_sql(len(ids), len(takes_over), lease_sql),
            [
                *(_to_db("batch", value) for value in (batch, worker)),
                device,
                *lease,
                *(_to_db("id", job_id) for job_id in ids),
                model,
                sys.maxsize if alone else settings.MAX_RECOVERIES - 1,
                *(_to_db("batch", over) for over in takes_over),
            ],
        )
        claimed = [Claimed(**values) for values in rows.from_db(cursor.fetchall(), _CLAIMED, connection)]
    return sorted(claimed, key=lambda job: (job.created_at, job.id))


def _claim_sql(ids: int, takes_over: int, lease: str) -> str:
    """One statement that changes the rows and returns them: nothing can come in between."""
    now = _now_sql()
    free = f"status = 'queued' AND (expires_at IS NULL OR expires_at > {now}) AND recoveries < %s"
    free += f" OR status = 'running' AND batch IN ({marks(takes_over)})"
    return (
        f"UPDATE {Job._meta.db_table} SET status = 'running', batch = %s, worker = %s, device = %s,"  # noqa: S608 - our own names only
        f" started_at = {now}, lease_until = {lease}, attempts = attempts + 1"
        f" WHERE id IN ({marks(ids)}) AND model = %s AND ({free})"
        f" RETURNING {', '.join(_CLAIMED)}"
    )


def record(batch: UUID, outcomes: Sequence[Outcome], *, batch_size: int) -> int:
    """Record the outcomes that `batch` still owns, in one transaction. Returns how many rows took theirs.

    Raises what the database raises: `inference.failures` tells one that is away from one that refuses a value."""
    if not outcomes:
        return 0
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.executemany(_record_sql(), [_record_row(batch, outcome, batch_size) for outcome in outcomes])
        return int(cursor.rowcount)


_RECORDED = ("status", "output", "error_code", "error_detail", "batch_size")


def _record_sql() -> str:
    assignments = ", ".join(f"{name} = %s" for name in _RECORDED)
    return (
        f"UPDATE {Job._meta.db_table} SET {assignments}, finished_at = {_now_sql()}"  # noqa: S608 - our own names only
        " WHERE id = %s AND batch = %s AND status = 'running'"
    )


def _record_row(batch: UUID, outcome: Outcome, batch_size: int) -> list[Any]:
    values = (outcome.status, outcome.output, outcome.error_code, storable(outcome.error_detail), batch_size)
    row = [_to_db(name, value) for name, value in zip(_RECORDED, values, strict=True)]
    return [*row, _to_db("id", outcome.job_id), _to_db("batch", batch)]


def _now_sql() -> str:
    """The clock of the database: no two hosts' clocks are ever compared. Doubled where it passes through `%`."""
    return _in_seconds(0.0, connection.vendor)[0]


@functools.cache
def _in_seconds(seconds: float, vendor: str) -> tuple[str, Sequence[Any]]:
    """So much later than now, as SQL and its values. To compile it takes a millisecond."""
    moment: Any = Now() + datetime.timedelta(seconds=seconds) if seconds else Now()
    query = Job.objects.all().query
    sql, values = query.get_compiler(connection=connection).compile(moment.resolve_expression(query))
    return str(sql), values


def _to_db(name: str, value: Any) -> Any:
    return rows.to_db(name, value, connection)
