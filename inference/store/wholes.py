"""Jobs that run in parts, each of which is called a whole.

A whole is never claimed. It is running once one of its parts is. It ends as soon as all its parts have succeeded. If a
part does not succeed, it ends with the outcome of the first such part in its list, as soon as all parts before that one
have succeeded.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from typing import Any
from uuid import UUID

from django.db import DatabaseError, transaction
from django.db.models import Count, Exists, OuterRef, QuerySet, Sum
from django.db.models.functions import Now

from inference import budget, errors, row_locks
from inference.catalog.sizes import lengths
from inference.connection_retries import ServerErrorKind, classify_server_error
from inference.figures import tallies, tally_rows
from inference.models import WAITING, Job, Status
from inference.store import job_rows, notices
from inference.telemetry import logs, tracing

if tracing.on:
    from inference.store import job_spans

logger = logging.getLogger(__name__)

_BROKEN = (Status.FAILED, Status.EXPIRED, Status.CANCELLED)


def describe_overflow(numbers: int) -> str:
    """Return the error of an answer that is too large, as a factor: vectors in base64 count less than their numbers."""
    factor = math.ceil(100 * numbers / lengths.MOST_ANSWERED) / 100
    return f"The answer is about {factor} times as large as may be: send less in one job."


def lock_wholes(ids: Collection[UUID]) -> dict[UUID, int | None]:
    """Lock these wholes, and return the number of parts of each.

    Of two transactions that record parts of one whole, the second then sees what the first did: else neither would be
    the last one. Wholes are locked in order and before any part, so that a transaction which holds a whole waits for
    none that wants one.
    """
    if not ids:
        return {}
    return dict(row_locks.make_locking_query(Job.objects.filter(pk__in=ids)).values_list("pk", "parts"))


def settle_whole(whole: UUID, count: int | None) -> str:
    """End a whole if its parts allow it, and return its end as figures count it; an empty string if it goes on.

    The caller has locked the whole. `count` is the number of its parts.
    """
    parts = Job.objects.filter(whole=whole)
    waiting = parts.filter(status__in=WAITING)
    broken = parts.filter(status__in=_BROKEN).order_by("place").defer("inputs", "output").first()
    if broken:
        cancel_parts(waiting.filter(place__gt=broken.place))
        waiting = waiting.filter(place__lt=broken.place)
    if waiting.exists():
        return ""
    end: dict[str, Any] = {"status": Status.SUCCEEDED, "output": job_rows.make_parts_output_expression(whole)}
    if broken:
        end = {name: getattr(broken, name) for name in ("status", *job_rows.ERROR)}
    else:
        held = parts.aggregate(outputs=Count("output"), numbers=Sum("output_size"))
        if held["outputs"] != count:  # rows were deleted: the other outputs would be taken for those of other inputs
            gone = f"Of the {count} parts of this list {held['outputs']} are left: send it again."
            end = _make_failure(errors.Lost.code, gone)
        elif (held["numbers"] or 0) > lengths.MOST_ANSWERED:
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
            transaction.on_commit(
                lambda: job_spans.try_to_record(job_spans.make_spans_without_batch, [whole], end["status"], code)
            )
        return tallies.make_end_name(end["status"], code)
    return ""


def cancel_parts(parts: QuerySet[Job]) -> None:
    """Cancel parts whose outputs are no longer needed.

    A part that another transaction is changing is skipped, and runs in vain: this transaction has locked the whole, and
    must not wait.
    """
    with budget.lift_budget():  # there may be thousands
        ids = parts.order_by("pk").select_for_update(skip_locked=True).values_list("pk", flat=True)
        for chunk in job_rows.split_into_chunks(ids):
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
                end = next((settle_whole(*locked) for locked in lock_wholes([whole]).items()), "")
                _count_end(model, end)
        except DatabaseError as error:
            if classify_server_error(error) is not ServerErrorKind.DATA:
                raise
            logger.error("job=%s not put together, the database refuses it: %s", whole, logs.describe_error(error))
            with transaction.atomic():
                failure = _make_failure(errors.BadOutput.code, "The database refused to store the answer.")
                end = _end_whole(whole, failure)
                _count_end(model, end)
        if end:
            notices.publish_finished_jobs([whole])


def _count_end(model: str, end: str) -> None:
    if end:
        tally_rows.insert_tally(model, {"ended": {end: 1}})
