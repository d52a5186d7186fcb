"""Each change of a job's state: one conditional statement, and the notice to who waits when it ends the job.

A batch is a UUID. Claiming writes it on rows that may be claimed; recording is conditional on it. Zero rows changed
means that somebody else owns the job now, and the outcome is dropped.
"""

import datetime
import functools
import logging
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from inference import errors, failpoints
from inference.json_field import storable
from inference.models import WAITING, Job, Status
from inference.store import notices, rows
from inference.store.rows import marks

logger = logging.getLogger(__name__)


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


_to_db = functools.partial(rows.to_db, database=connection)
LEASE_MARGIN_S = 20.0  # past the model's time limit, which the worker itself enforces
_QUEUED_AGAIN = {"status": Status.QUEUED, "batch": None, "worker": None, "started_at": None, "published_at": None}

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
    failpoints.reach("before_record")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.executemany(_record_sql(), [_record_row(batch, outcome, batch_size) for outcome in outcomes])
        recorded = int(cursor.rowcount)
    failpoints.reach("after_record")
    failpoints.reach("before_notify")
    notices.publish([outcome.job_id for outcome in outcomes])
    failpoints.reach("after_notify")
    return recorded


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


def cancel(job_id: UUID) -> None:
    """A queued or running job; a running job's outcome is dropped."""
    _end(Job.objects.filter(status__in=WAITING), [job_id], Status.CANCELLED)


def cancel_many(ids: Collection[UUID]) -> Counter[str]:
    """How many of at most `rows.MOST` jobs were cancelled, by their status before."""
    return Counter({before: _end(Job.objects.filter(status=before), ids, Status.CANCELLED) for before in WAITING})


def expire() -> None:
    """Queued jobs past their deadline."""
    overdue = Job.objects.filter(status=Status.QUEUED, expires_at__lte=Now())
    if expired := _end_all(
        overdue, Status.EXPIRED, error_code=errors.Expired.code, error_detail="Not started before its deadline."
    ):
        logger.info("%d jobs expired", expired)


def give_back_lost(which: Q) -> None:
    """Running jobs whose batch died; who is lost too often fails, the last time alone in its worker."""
    lost = Job.objects.filter(which, status=Status.RUNNING)
    failed = _end_all(
        lost.filter(recoveries__gte=settings.MAX_RECOVERIES - 1),
        Status.FAILED,
        recoveries=F("recoveries") + 1,
        error_code=errors.Lost.code,
        error_detail=f"Every worker that ran it was lost, {settings.MAX_RECOVERIES} times; the last one ran it alone.",
    )
    given = lost.update(**_QUEUED_AGAIN, recoveries=F("recoveries") + 1)
    if failed or given:
        logger.warning("%d running jobs given back, %d given up as lost", given, failed)


def give_back_stopped(which: Q) -> None:
    """Who stops a worker says nothing about its jobs: it does not count."""
    if given := Job.objects.filter(which, status=Status.RUNNING).update(**_QUEUED_AGAIN):
        logger.warning("%d running jobs of stopped workers given back", given)


def _end_all(jobs: QuerySet[Job], status: Status, **values: Any) -> int:
    found = jobs.order_by().values_list("pk", flat=True)
    return sum(_end(jobs, ids, status, **values) for ids in rows.chunks(found))


def _end(jobs: QuerySet[Job], ids: Collection[UUID], status: Status, **values: Any) -> int:
    """Those of `ids` that are among `jobs` now. Who waits for the others reads their rows once more."""
    ended = jobs.filter(pk__in=ids).update(status=status, finished_at=Now(), **values)
    if ended:
        notices.publish(ids)
    return ended


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
