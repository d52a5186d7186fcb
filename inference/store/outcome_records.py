"""The outcomes of jobs, which are recorded together with what figures count of them."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from inference import clock, failpoints, row_locks
from inference.fields.json_field import escape_for_database
from inference.figures import tallies, tally_rows
from inference.figures.tallies import Tally
from inference.models import Job, Status
from inference.store import job_rows, notices
from inference.store.wholes import lock_wholes, settle_whole
from inference.telemetry import tracing

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

if tracing.on:
    from inference.store import job_spans


class Outcome(NamedTuple):  # not a frozen dataclass, which takes five times as long to make
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


def record_outcomes(
    batch: UUID, outcomes: Sequence[Outcome], *, batch_size: int, beside: Mapping[str, Any] | None = None
) -> int:
    """Record the outcomes of jobs that `batch` still owns and count them, in one transaction.

    `batch_size` is the number of items that ran together. `beside` is a tally that is counted with them. Returns how
    many jobs got their outcome.

    Raises what the database raises. `inference.connection_retries` distinguishes a database that is away from one that
    refuses a value.
    """
    failpoints.reach("before_record")
    try:
        with transaction.atomic():
            wholes = lock_wholes(_collect_wholes(outcomes))
            recorded, ended = _record_locked(batch, outcomes, batch_size, beside or {}, wholes)
    except _NotAll:
        recorded, ended = _record_held(batch, outcomes, batch_size, beside or {})
    failpoints.reach("after_record")
    failpoints.reach("before_notify")
    notices.publish_finished_jobs([*(outcome.job_id for outcome in outcomes), *ended])
    failpoints.reach("after_notify")
    return recorded


class _NotAll(Exception):
    """Raised if some of the jobs are not the batch's any more.

    The rows must then be locked and looked up, since only the others are recorded and counted.
    """


def _record_held(
    batch: UUID, outcomes: Sequence[Outcome], batch_size: int, beside: Mapping[str, Any]
) -> tuple[int, list[UUID]]:
    with transaction.atomic():
        locked = lock_wholes(_collect_wholes(outcomes))
        held = Job.objects.filter(pk__in=[each.job_id for each in outcomes], batch=batch, status=Status.RUNNING)
        ids = set(row_locks.make_locking_query(held).values_list("pk", flat=True))
        held_outcomes = [outcome for outcome in outcomes if outcome.job_id in ids]
        wholes = _collect_wholes(held_outcomes)
        of_held = {whole: parts for whole, parts in locked.items() if whole in wholes}
        return _record_locked(batch, held_outcomes, batch_size, beside, of_held)


def _collect_wholes(outcomes: Iterable[Outcome]) -> set[UUID]:
    return {outcome.whole for outcome in outcomes if outcome.whole}


def _record_locked(
    batch: UUID, outcomes: Sequence[Outcome], batch_size: int, beside: Mapping[str, Any], wholes: Mapping[UUID, Any]
) -> tuple[int, list[UUID]]:
    """Record outcomes in the present transaction, in which their wholes are locked.

    `wholes` has the number of parts of each whole that an outcome belongs to. Returns how many outcomes were recorded,
    and the wholes that ended. Raises `_NotAll` if `batch` does not own all the jobs any more.
    """
    if not outcomes:
        return 0, []
    outcomes = sorted(outcomes, key=lambda outcome: outcome.job_id.int)  # one order of locks in all statements
    database = connections[DEFAULT_DB_ALIAS]
    ids = job_rows.convert_ids_to_db([outcome.job_id for outcome in outcomes], database)
    recorded = [_make_outcome_row(*each, batch_size, database) for each in zip(ids, outcomes, strict=True)]
    for statement in job_rows.split_by_size(recorded):
        if job_rows.end_claimed_jobs(statement, batch) < len(statement):
            raise _NotAll
    ends = {whole: end for whole, parts in wholes.items() if (end := settle_whole(whole, parts))}
    tally_rows.add_to_own_row(outcomes[0].model, tallies.merge_tally(_tally_outcomes(outcomes, ends.values()), beside))
    if tracing.on:
        transaction.on_commit(lambda: job_spans.try_to_record(job_spans.make_batch_spans, batch, outcomes, batch_size))
    return len(outcomes), list(ends)


def _tally_outcomes(outcomes: Sequence[Outcome], ends: Iterable[str]) -> Tally:
    """Return the tally of these outcomes and of `ends`, the ends of wholes."""
    tally: Tally = {}
    ended = Counter(ends)
    for code, count in Counter(each.error_code for each in outcomes if not each.whole).items():
        ended[tallies.make_end_name(_choose_status(code), code)] += count
    now_s = clock.estimate_now_s()
    for (created_at, started_at), count in Counter((each.created_at, each.started_at) for each in outcomes).items():
        if created_at and started_at:
            waited_s = (started_at - created_at).total_seconds()
            tallies.add_value(tally, "wait", max(0.0, waited_s), unit=tallies.UNIT_S, count=count)
            tallies.add_value(tally, "run", max(0.0, now_s - started_at.timestamp()), unit=tallies.UNIT_S, count=count)
    return tallies.merge_tally(tally, {"ended": ended})


def _make_outcome_row(
    job_id: UUID | str, outcome: Outcome, batch_size: int, database: BaseDatabaseWrapper
) -> job_rows.JobRow:
    return job_rows.make_job_row(
        {
            "id": job_id,
            "status": outcome.status.value,
            "output": job_rows.convert_to_db("output", outcome.output, database),
            "output_size": outcome.output_size,
            "prompt_length": outcome.prompt_length,
            "error_code": outcome.error_code,
            "error_detail": outcome.error_detail and escape_for_database(outcome.error_detail),
            "error_raised": escape_for_database(outcome.error_raised) if outcome.error_code else None,
            "error_trace": escape_for_database(outcome.error_trace) if outcome.error_code else None,
            "batch_size": batch_size,
        }
    )
