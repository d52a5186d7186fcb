"""Changes of a job's state: each is one conditional statement, with a notice to waiting requests if it ends the job.

A batch is a UUID. Claiming writes it on rows that may be claimed; recording (`inference.store.outcome_records`) is
conditional on it. Zero changed rows mean that another batch owns the job now, and the outcome is dropped. What follows
for a job that runs in parts is in `inference.store.wholes`.
"""

from __future__ import annotations

import datetime
import functools
import logging
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now
from django.db.models.lookups import IsNull

from inference import errors, row_locks
from inference.figures import tallies, tally_rows
from inference.models import TERMINAL, WAITING, Job, Status, Webhook
from inference.store import job_rows, notices, wholes
from inference.store.job_rows import make_moment_sql, make_now_sql, make_placeholders
from inference.telemetry import tracing

if tracing.on:
    from inference.store import job_spans

logger = logging.getLogger(__name__)


class Claimed(NamedTuple):  # not a frozen dataclass, which takes five times as long to make
    """The columns of a claimed job that its run needs."""

    id: UUID
    model: str
    inputs: Any
    parameters: dict[str, Any]
    size: int
    length: int
    created_at: datetime.datetime
    started_at: datetime.datetime
    whole: UUID | None
    place: int | None
    traceparent: str | None = None


SET_BACK_S = 60.0  # a moment so far in the future was written before the database's clock was set back
LEASE_MARGIN_S = 20.0  # from the model's time limit, which the worker itself enforces, to the end of the lease
_QUEUED_AGAIN = {"status": Status.QUEUED, "batch": None, "worker": None, "started_at": None, "published_at": None}

_CLAIMED = tuple(name for name in Claimed._fields if tracing.on or name != "traceparent")


def claim_jobs(
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
    """Claim those of `ids` that may be claimed for `batch`, and return them with their inputs, the oldest first.

    The lease ends `LEASE_MARGIN_S` after `time_limit_s`; then the job may be queued again.

    A job whose next loss would be its last is claimed only if `alone` is true: no crash of another job's input is to
    end it.

    `takes_over` are batches of this worker that are known to be over. Their jobs are claimed although they are running.
    So are jobs that `batch` itself holds: the answer to an earlier claim may have been lost on its way.
    """
    takes_over = (*takes_over, batch)
    database: Any = connections[DEFAULT_DB_ALIAS]
    lease_sql, lease = make_moment_sql(time_limit_s + LEASE_MARGIN_S, database.vendor)
    with database.cursor() as cursor:
        cursor.execute(
            _make_claim_sql(len(ids), len(takes_over), lease_sql),
            [
                *job_rows.convert_ids_to_db((batch, worker), database),
                device,
                *lease,
                *job_rows.convert_ids_to_db(ids, database),
                model,
                sys.maxsize if alone else job_rows.get_run_alone_threshold(),
                *job_rows.convert_ids_to_db(takes_over, database),
            ],
        )
        claimed = [Claimed(*values) for values in job_rows.convert_from_db(cursor.fetchall(), _CLAIMED, database)]
    for whole in {job.whole for job in claimed if job.whole}:
        begun = {"status": Status.RUNNING, "started_at": Now(), "attempts": 1}
        Job.objects.filter(pk=whole, status=Status.QUEUED).update(**begun)
    return sorted(claimed, key=lambda job: (job.created_at, job.id.int))


@functools.lru_cache(maxsize=job_rows.SHAPES)
def _make_claim_sql(ids: int, takes_over: int, lease: str) -> str:
    """Return one statement that locks the rows in order, changes and returns them, so that nothing comes in between."""
    now = make_now_sql()
    free = f"status = 'queued' AND (expires_at IS NULL OR expires_at > {now}) AND recoveries < %s"
    free += f" OR status = 'running' AND batch IN ({make_placeholders(takes_over)})"
    table = Job._meta.db_table
    claimable = f"id IN ({make_placeholders(ids)}) AND model = %s AND parts IS NULL AND ({free})"
    if connections[DEFAULT_DB_ALIAS].features.has_select_for_update:
        claimable = f"id IN (SELECT id FROM {table} WHERE {claimable} ORDER BY id FOR UPDATE)"  # noqa: S608 - as below
    return (
        f"UPDATE {table} SET status = 'running', batch = %s, worker = %s, device = %s,"  # noqa: S608 - our own names only
        f" started_at = {now}, lease_until = (SELECT {lease}), attempts = attempts + 1"
        f" WHERE {claimable} RETURNING {', '.join(_CLAIMED)}"
    )


def extend_lease(batch: UUID, ids: Collection[UUID], *, time_limit_s: float) -> None:
    """Renew the leases of those of `ids` that `batch` still runs, to `LEASE_MARGIN_S` past `time_limit_s` from now.

    The batch was held up by work that is not part of these jobs.
    """
    lease: Any = Now() + datetime.timedelta(seconds=time_limit_s + LEASE_MARGIN_S)
    row_locks.update_rows(Job.objects.filter(pk__in=ids, batch=batch, status=Status.RUNNING), lease_until=lease)


def cancel_job(job_id: UUID, *, reader: UUID | None = None) -> bool:
    """Cancel a queued or running job that has no parts, and return True if it was cancelled.

    The outcome of a running job is dropped. With a `reader`, the job is cancelled only while that is its last reader.
    """
    jobs = Job.objects.filter(status__in=WAITING)
    return bool(_end_jobs(jobs.filter(reader=reader) if reader else jobs, [job_id], Status.CANCELLED))


def cancel_jobs_with_parts(ids: Collection[UUID]) -> Counter[str]:
    """Cancel at most `rows.MOST` jobs, with their parts, and return how many were cancelled by earlier status."""
    with transaction.atomic():
        jobs = Job.objects.filter(pk__in=ids, status__in=WAITING)
        held = list(_lock_jobs(jobs).values_list("status", "pk", "model", "whole"))
        _end_locked([row[1:] for row in held], Status.CANCELLED)
        wholes.cancel_parts(Job.objects.filter(whole__in=ids, status__in=WAITING))
    if held:
        notices.publish_finished_jobs(ids)
    return Counter(status for status, *_ in held)


def delete_ended_jobs(ids: Collection[UUID]) -> int:
    """Remove those of these jobs that have ended, with their webhooks, and return how many they are.

    The parts of a job stay.
    """
    ended = Job.objects.filter(pk__in=ids, status__in=TERMINAL)
    with transaction.atomic():
        row_locks.delete_rows(Webhook.objects.filter(job__in=ended))
        return row_locks.delete_rows(ended)


def delete_parts(whole: UUID) -> None:
    """Remove the parts of a job that is removed. The outcome of a part that still runs is dropped."""
    row_locks.delete_rows(Job.objects.filter(whole=whole))


def expire_jobs() -> None:
    """Expire queued jobs that are past their deadline, then end the wholes of expired parts.

    A whole does not expire by its own row: that may be queued although a part has begun, since it is changed a moment
    after the part's row.
    """
    overdue = Job.objects.filter(status=Status.QUEUED, parts=None, expires_at__lte=Now())
    if expired := _end_all(
        overdue, Status.EXPIRED, error_code=errors.Expired.code, error_detail="Not started before its deadline."
    ):
        logger.info("%d jobs expired", expired)
        wholes.finish_wholes()


def restart_overlong_leases() -> None:
    """Restart the leases that were given before the database's clock was set back.

    They would end later by as much as the clock was set back.
    """
    set_back = Job.objects.filter(status=Status.RUNNING, started_at__gt=Now() + datetime.timedelta(seconds=SET_BACK_S))
    row_locks.update_rows(set_back, lease_until=Now() + (F("lease_until") - F("started_at")), started_at=Now())


def requeue_lost_jobs(which: Q) -> None:
    """Queue the running jobs that `which` selects again, as jobs whose batch was lost, and count the loss.

    A job that was lost `MAX_RECOVERIES` times fails instead; the last time it ran alone in its worker.
    """
    lost = Job.objects.filter(which, status=Status.RUNNING)
    failed = _end_all(
        lost.filter(recoveries__gte=job_rows.get_run_alone_threshold()),
        Status.FAILED,
        recoveries=F("recoveries") + 1,
        error_code=errors.Lost.code,
        error_detail=f"Every worker that ran it was lost, {settings.MAX_RECOVERIES} times; the last one ran it alone.",
    )
    given = row_locks.update_rows(lost, **_QUEUED_AGAIN, recoveries=F("recoveries") + 1)
    if failed or given:
        logger.warning("%d running jobs given back, %d given up as lost", given, failed)


def requeue_stopped_worker_jobs(which: Q) -> None:
    """Queue the running jobs of stopped workers again.

    This does not count as a loss: a stop says nothing about the jobs.
    """
    if given := row_locks.update_rows(Job.objects.filter(which, status=Status.RUNNING), **_QUEUED_AGAIN):
        logger.warning("%d running jobs of stopped workers given back", given)


def _end_all(jobs: QuerySet[Job], status: Status, **values: Any) -> int:
    found = jobs.order_by().values_list("pk", flat=True)
    return sum(_end_jobs(jobs, ids, status, **values) for ids in job_rows.split_into_chunks(found))


def _end_jobs(jobs: QuerySet[Job], ids: Collection[UUID], status: Status, **values: Any) -> int:
    """End those of `ids` that are among `jobs` now, and return how many they are.

    The notice names all `ids`: requests that wait for the others read their rows once more.
    """
    with transaction.atomic():
        held = list(_lock_jobs(jobs.filter(pk__in=ids)).values_list("pk", "model", "whole"))
        _end_locked(held, status, **values)
    if held:
        notices.publish_finished_jobs(ids)
    return len(held)


def _lock_jobs(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Return the query that locks these jobs, wholes first.

    A transaction that records a part has locked its whole before any part.
    """
    return jobs.order_by(IsNull(F("parts"), True), "pk").select_for_update()


def _end_locked(held: Sequence[tuple[UUID, str, UUID | None]], status: Status, **values: Any) -> None:
    """End jobs that are locked, and count those that are not parts.

    `held` has the id, the model and the whole of each.
    """
    Job.objects.filter(pk__in=[job_id for job_id, _, _ in held]).update(status=status, finished_at=Now(), **values)
    code = values.get("error_code", "")
    if tracing.on:
        transaction.on_commit(
            lambda: job_spans.try_to_record(
                job_spans.make_spans_without_batch, [job_id for job_id, _, _ in held], status, code
            )
        )
    end = tallies.make_end_name(status, code)
    for model, count in Counter(model for _, model, whole in held if not whole).items():
        tally_rows.insert_tally(model, {"ended": {end: count}})
