"""Changes of a job's state: each is one conditional statement, with a notice to waiting requests if it ends the job.

A batch is a UUID. Claiming writes it on rows that may be claimed; recording is conditional on it. Zero changed rows
mean that another batch owns the job now, and the outcome is dropped.

A job that runs in parts, the whole, is never claimed. It is running once one of its parts is. It ends as soon as all
its parts have succeeded. If a part does not succeed, it ends with the outcome of the first such part in its list, as
soon as all parts before that one have succeeded.
"""

from __future__ import annotations

import datetime
import functools
import logging
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, transaction
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Sum
from django.db.models.functions import Now
from django.db.models.lookups import IsNull

from inference import budget, clock, errors, failpoints, row_locks
from inference.failures import FailureKind, classify_error
from inference.fields.json_field import escape_for_database
from inference.figures import ledger, tallies
from inference.figures.tallies import Tally
from inference.models import WAITING, Job, Status
from inference.store import notices, rows
from inference.store.rows import make_moment_sql, make_now_sql, placeholders
from inference.telemetry import logs, tracing

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

if tracing.on:
    from inference.store import spans

logger = logging.getLogger(__name__)

Sizes = int | Mapping[UUID, int]  # items of the batch that a job was computed in: for all jobs, or by job id


class Outcome(NamedTuple):  # not a frozen dataclass, which takes five times as long to make; the same for `Claimed`
    """The outcome of one job: its `output`, or an error's code and detail.

    `error_raised` and `error_trace` are what was raised and where, for operators.
    """

    job_id: UUID
    model: str
    output: Any = None
    output_size: int | None = None  # numbers
    prompt_length: int | None = None  # characters before the generated text in the output
    error_code: str = ""
    error_detail: str = ""
    error_raised: str = ""
    error_trace: str = ""
    whole: UUID | None = None  # the job that this one is a part of
    created_at: datetime.datetime | None = None
    started_at: datetime.datetime | None = None
    traceparent: str | None = None

    @property
    def status(self) -> Status:
        return _choose_status(self.error_code)


def _choose_status(error_code: str) -> Status:
    return Status.FAILED if error_code else Status.SUCCEEDED


class Claimed(NamedTuple):
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


MOST_ANSWERED = 2_000_000  # numbers in the output of one job: a process that shows them takes 150 MB
SET_BACK_S = 60.0  # a moment so far in the future was written before the database's clock was set back
LEASE_MARGIN_S = 20.0  # from the model's time limit, which the worker itself enforces, to the end of the lease
_BROKEN = (Status.FAILED, Status.EXPIRED, Status.CANCELLED)
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
                *rows.convert_ids_to_db((batch, worker), database),
                device,
                *lease,
                *rows.convert_ids_to_db(ids, database),
                model,
                sys.maxsize if alone else rows.get_last_recovery(),
                *rows.convert_ids_to_db(takes_over, database),
            ],
        )
        claimed = [Claimed(*values) for values in rows.convert_from_db(cursor.fetchall(), _CLAIMED, database)]
    for whole in {job.whole for job in claimed if job.whole}:
        begun = {"status": Status.RUNNING, "started_at": Now(), "attempts": 1}
        Job.objects.filter(pk=whole, status=Status.QUEUED).update(**begun)
    return sorted(claimed, key=lambda job: (job.created_at, job.id.int))


@functools.lru_cache(maxsize=rows.SHAPES)
def _make_claim_sql(ids: int, takes_over: int, lease: str) -> str:
    """Return one statement that locks the rows in order, changes and returns them, so that nothing comes in between."""
    now = make_now_sql()
    free = f"status = 'queued' AND (expires_at IS NULL OR expires_at > {now}) AND recoveries < %s"
    free += f" OR status = 'running' AND batch IN ({placeholders(takes_over)})"
    table = Job._meta.db_table
    claimable = f"id IN ({placeholders(ids)}) AND model = %s AND parts IS NULL AND ({free})"
    if connections[DEFAULT_DB_ALIAS].features.has_select_for_update:
        claimable = f"id IN (SELECT id FROM {table} WHERE {claimable} ORDER BY id FOR UPDATE)"  # noqa: S608 - as below
    return (
        f"UPDATE {table} SET status = 'running', batch = %s, worker = %s, device = %s,"  # noqa: S608 - our own names only
        f" started_at = {now}, lease_until = (SELECT {lease}), attempts = attempts + 1"
        f" WHERE {claimable} RETURNING {', '.join(_CLAIMED)}"
    )


def withdraw_claim(batch: UUID, ids: Collection[UUID], *, keeps_messages: bool) -> None:
    """Undo the claim of jobs that `batch` has not begun.

    With `keeps_messages` their messages still count as sent; else they are sent again.
    """
    held = Job.objects.filter(pk__in=ids, batch=batch, status=Status.RUNNING)
    unclaimed = {name: value for name, value in _QUEUED_AGAIN.items() if name != "published_at" or not keeps_messages}
    row_locks.update_rows(held, **unclaimed, attempts=F("attempts") - 1)


def extend_lease(batch: UUID, ids: Collection[UUID], *, time_limit_s: float) -> None:
    """Renew the leases of those of `ids` that `batch` still runs, to `LEASE_MARGIN_S` past `time_limit_s` from now.

    The batch was held up by work that is not part of these jobs.
    """
    lease: Any = Now() + datetime.timedelta(seconds=time_limit_s + LEASE_MARGIN_S)
    row_locks.update_rows(Job.objects.filter(pk__in=ids, batch=batch, status=Status.RUNNING), lease_until=lease)


def record_outcomes(
    batch: UUID, outcomes: Sequence[Outcome], *, batch_size: Sizes, beside: Mapping[str, Any] | None = None
) -> int:
    """Record the outcomes of jobs that `batch` still owns and count them, in one transaction.

    `beside` is a tally that is counted with them. Returns how many jobs got their outcome.

    Raises what the database raises. `inference.failures` distinguishes a database that is away from one that refuses a
    value.
    """
    failpoints.reach("before_record")
    try:
        with transaction.atomic():
            wholes = _lock_wholes(_collect_wholes(outcomes))
            recorded, ended = _record_locked(batch, outcomes, batch_size, beside or {}, wholes)
    except _NotAll:
        recorded, ended = _record_held(batch, outcomes, batch_size, beside or {})
    failpoints.reach("after_record")
    failpoints.reach("before_notify")
    notices.publish_finished([*(outcome.job_id for outcome in outcomes), *ended])
    failpoints.reach("after_notify")
    return recorded


class _NotAll(Exception):
    """Raised if some of the jobs are not the batch's any more.

    The rows must then be locked and looked up, since only the others are recorded and counted.
    """


def _record_held(
    batch: UUID, outcomes: Sequence[Outcome], batch_size: Sizes, beside: Mapping[str, Any]
) -> tuple[int, list[UUID]]:
    with transaction.atomic():
        locked = _lock_wholes(_collect_wholes(outcomes))
        held = Job.objects.filter(pk__in=[each.job_id for each in outcomes], batch=batch, status=Status.RUNNING)
        ids = set(row_locks.lock_rows(held).values_list("pk", flat=True))
        held_outcomes = [outcome for outcome in outcomes if outcome.job_id in ids]
        wholes = _collect_wholes(held_outcomes)
        of_held = {whole: parts for whole, parts in locked.items() if whole in wholes}
        return _record_locked(batch, held_outcomes, batch_size, beside, of_held)


def _collect_wholes(outcomes: Iterable[Outcome]) -> set[UUID]:
    return {outcome.whole for outcome in outcomes if outcome.whole}


def _record_locked(
    batch: UUID, outcomes: Sequence[Outcome], batch_size: Sizes, beside: Mapping[str, Any], wholes: Mapping[UUID, Any]
) -> tuple[int, list[UUID]]:
    """Record outcomes in the present transaction, in which their wholes are locked.

    `wholes` has the number of parts of each whole that an outcome belongs to. Returns how many outcomes were recorded,
    and the wholes that ended. Raises `_NotAll` if `batch` does not own all the jobs any more.
    """
    if not outcomes:
        return 0, []
    outcomes = sorted(outcomes, key=lambda outcome: outcome.job_id.int)  # one order of locks in all statements
    database = connections[DEFAULT_DB_ALIAS]
    ids = rows.convert_ids_to_db([outcome.job_id for outcome in outcomes], database)
    recorded = [_make_outcome_row(*each, batch_size, database) for each in zip(ids, outcomes, strict=True)]
    for statement in rows.group_by_statement(recorded):
        if rows.end_held_jobs(statement, batch) < len(statement):
            raise _NotAll
    ends = {whole: end for whole, parts in wholes.items() if (end := _settle_whole(whole, parts))}
    ledger.add_to_own_row(outcomes[0].model, tallies.add_tally(_tally_outcomes(outcomes, ends.values()), beside))
    if tracing.on:
        transaction.on_commit(lambda: spans.try_to_record(spans.record_batch_span, batch, outcomes, batch_size))
    return len(outcomes), list(ends)


def _tally_outcomes(outcomes: Sequence[Outcome], ends: Iterable[str]) -> Tally:
    """Return the tally of these outcomes and of `ends`, the ends of wholes."""
    tally: Tally = {}
    ended = Counter(ends)
    for code, count in Counter(each.error_code for each in outcomes if not each.whole).items():
        ended[_make_end_name(_choose_status(code), code)] += count
    now_s = clock.time_s()
    for (created_at, started_at), count in Counter((each.created_at, each.started_at) for each in outcomes).items():
        if created_at and started_at:
            waited_s = (started_at - created_at).total_seconds()
            tallies.add_value(tally, "wait", max(0.0, waited_s), unit=tallies.UNIT_S, count=count)
            tallies.add_value(tally, "run", max(0.0, now_s - started_at.timestamp()), unit=tallies.UNIT_S, count=count)
    return tallies.add_tally(tally, {"ended": ended})


def _make_end_name(status: str, code: str) -> str:
    """Return the name by which figures count an end."""
    return f"{status} {code}" if status == Status.FAILED else str(status)


def _make_outcome_row(
    job_id: UUID | str, outcome: Outcome, batch_size: Sizes, database: BaseDatabaseWrapper
) -> rows.JobRow:
    return rows.make_row(
        {
            "id": job_id,
            "status": outcome.status.value,
            "output": rows.convert_to_db("output", outcome.output, database),
            "output_size": outcome.output_size,
            "prompt_length": outcome.prompt_length,
            "error_code": outcome.error_code,
            "error_detail": outcome.error_detail and escape_for_database(outcome.error_detail),
            "error_raised": escape_for_database(outcome.error_raised) if outcome.error_code else None,
            "error_trace": escape_for_database(outcome.error_trace) if outcome.error_code else None,
            "batch_size": batch_size if isinstance(batch_size, int) else batch_size[outcome.job_id],
        }
    )


def _lock_wholes(ids: Collection[UUID]) -> dict[UUID, int | None]:
    """Lock these wholes, and return the number of parts of each.

    Of two transactions that record parts of one whole, the second then sees what the first did: else neither would be
    the last one. Wholes are locked in order and before any part, so that a transaction which holds a whole waits for
    none that wants one.
    """
    if not ids:
        return {}
    return dict(row_locks.lock_rows(Job.objects.filter(pk__in=ids)).values_list("pk", "parts"))


def _settle_whole(whole: UUID, count: int | None) -> str:
    """End a whole if its parts allow it, and return its end as figures count it; an empty string if it goes on.

    The caller has locked the whole. `count` is the number of its parts.
    """
    parts = Job.objects.filter(whole=whole)
    waiting = parts.filter(status__in=WAITING)
    broken = parts.filter(status__in=_BROKEN).order_by("place").defer("inputs", "output").first()
    if broken:
        _cancel_parts(waiting.filter(place__gt=broken.place))
        waiting = waiting.filter(place__lt=broken.place)
    if waiting.exists():
        return ""
    end: dict[str, Any] = {"status": Status.SUCCEEDED, "output": rows.make_joined_outputs_expression(whole)}
    if broken:
        end = {name: getattr(broken, name) for name in ("status", *rows.ERROR)}
    else:
        held = parts.aggregate(outputs=Count("output"), numbers=Sum("output_size"))
        if held["outputs"] != count:  # rows were deleted: the other outputs would be taken for those of other inputs
            gone = f"Of the {count} parts of this list {held['outputs']} are left: send it again."
            end = _make_failure(errors.Lost.code, gone)
        elif (held["numbers"] or 0) > MOST_ANSWERED:
            end = _make_failure(errors.InvalidInput.code, describe_overflow(held["numbers"]))
    ended = _end_whole(whole, end)
    row_locks.update_rows(parts.filter(output__isnull=False), output=None)  # an output is stored once, with the whole
    return ended


def _make_failure(code: str, detail: str) -> dict[str, Any]:
    return {"status": Status.FAILED, "error_code": code, "error_detail": detail, "error_raised": "", "error_trace": ""}


def _end_whole(whole: UUID, end: dict[str, Any]) -> str:
    if Job.objects.filter(pk=whole, status__in=WAITING).update(**end, finished_at=Now()):
        code = end.get("error_code", "")
        if tracing.on:
            transaction.on_commit(lambda: spans.try_to_record(spans.record_end_span, [whole], end["status"], code))
        return _make_end_name(end["status"], code)
    return ""


def describe_overflow(numbers: int) -> str:
    return f"The answer holds about {numbers} numbers, at most {MOST_ANSWERED} are kept: send less in one job."


def _cancel_parts(parts: QuerySet[Job]) -> None:
    """Cancel parts whose outputs are no longer needed.

    A part that another transaction is changing is skipped, and runs in vain: this transaction has locked the whole, and
    must not wait.
    """
    with budget.lift_budget():  # there may be thousands
        ids = parts.order_by("pk").select_for_update(skip_locked=True).values_list("pk", flat=True)
        for chunk in rows.split_into_chunks(ids):
            waiting = Job.objects.filter(pk__in=chunk, status__in=WAITING)
            waiting.update(status=Status.CANCELLED, finished_at=Now())


def finish_wholes() -> None:
    """End wholes whose parts ended without a record, or were recorded by a worker of a version without wholes."""
    parts = Job.objects.filter(whole=OuterRef("pk"))
    due = Exists(parts.filter(status__in=_BROKEN)) | ~Exists(parts.filter(status__in=WAITING))
    wholes = Job.objects.filter(due, parts__gt=0, status__in=WAITING)
    for whole, model in list(wholes.values_list("pk", "model")):
        try:
            with transaction.atomic():
                end = next((_settle_whole(*locked) for locked in _lock_wholes([whole]).items()), "")
                _count_end(model, end)
        except DatabaseError as error:
            if classify_error(error) is not FailureKind.DATA:
                raise
            logger.error("job=%s not put together, the database refuses it: %s", whole, logs.describe_error(error))
            with transaction.atomic():
                failure = _make_failure(errors.BadOutput.code, "The database refused to store the answer.")
                end = _end_whole(whole, failure)
                _count_end(model, end)
        if end:
            notices.publish_finished([whole])


def _count_end(model: str, end: str) -> None:
    if end:
        ledger.write_tally(model, {"ended": {end: 1}})


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
        _cancel_parts(Job.objects.filter(whole__in=ids, status__in=WAITING))
    if held:
        notices.publish_finished(ids)
    return Counter(status for status, *_ in held)


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
        finish_wholes()


def renew_future_leases() -> None:
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
        lost.filter(recoveries__gte=rows.get_last_recovery()),
        Status.FAILED,
        recoveries=F("recoveries") + 1,
        error_code=errors.Lost.code,
        error_detail=f"Every worker that ran it was lost, {settings.MAX_RECOVERIES} times; the last one ran it alone.",
    )
    given = row_locks.update_rows(lost, **_QUEUED_AGAIN, recoveries=F("recoveries") + 1)
    if failed or given:
        logger.warning("%d running jobs given back, %d given up as lost", given, failed)


def requeue_jobs_of_stopped(which: Q) -> None:
    """Queue the running jobs of stopped workers again.

    This does not count as a loss: a stop says nothing about the jobs.
    """
    if given := row_locks.update_rows(Job.objects.filter(which, status=Status.RUNNING), **_QUEUED_AGAIN):
        logger.warning("%d running jobs of stopped workers given back", given)


def _end_all(jobs: QuerySet[Job], status: Status, **values: Any) -> int:
    found = jobs.order_by().values_list("pk", flat=True)
    return sum(_end_jobs(jobs, ids, status, **values) for ids in rows.split_into_chunks(found))


def _end_jobs(jobs: QuerySet[Job], ids: Collection[UUID], status: Status, **values: Any) -> int:
    """End those of `ids` that are among `jobs` now, and return how many they are.

    The notice names all `ids`: requests that wait for the others read their rows once more.
    """
    with transaction.atomic():
        held = list(_lock_jobs(jobs.filter(pk__in=ids)).values_list("pk", "model", "whole"))
        _end_locked(held, status, **values)
    if held:
        notices.publish_finished(ids)
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
            lambda: spans.try_to_record(spans.record_end_span, [job_id for job_id, _, _ in held], status, code)
        )
    end = _make_end_name(status, code)
    for model, count in Counter(model for _, model, whole in held if not whole).items():
        ledger.write_tally(model, {"ended": {end: count}})
