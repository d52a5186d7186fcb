"""Acts on many jobs, done by workers beside their jobs: a little in each round, so that nothing else waits for long.

A worker that is at an act has leased its row. If it dies, the cursor stays where it was, and the next worker does the
jobs after it again. This changes nothing: a cancelled job stays so, and a retry has an idempotency key that makes it
one job.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db.models import Count, F, Q, QuerySet
from django.db.models.functions import Now

from inference import errors, row_locks
from inference.models import ACTING, Act, ActKind, ActState, Job, Status
from inference.store import transitions
from inference.submission import jobs

logger = logging.getLogger(__name__)

LOOKUPS = frozenset({
    "status", "model", "priority", "worker", "error_code", "batch", "whole", "whole__isnull", "bulk", "request_id",
    "owner", "key_start", "key_start__in", "id", "id__in", "id__gte", "id__endswith",
})  # fmt: skip
MOST = 100_000  # jobs of one act at most
ROUND_S = 2.0
LEASE = datetime.timedelta(seconds=60)
REFUSED = datetime.timedelta(seconds=10)
MOST_REASONS, OTHERS = 20, "other reasons"  # reasons that are counted apart, as some name their job
CANCELLED_AT_ONCE, RETRIED_AT_ONCE = 500, 20
KEPT = datetime.timedelta(days=90)

Left = Counter[str]


def filter_selected_jobs(selection: Mapping[str, Any], newest: UUID) -> QuerySet[Job]:
    """Return the jobs of a selection, as far as none is newer than the id `newest`.

    Raises `ValueError` for a lookup that is none of `LOOKUPS`.
    """
    if unknown := selection.keys() - LOOKUPS:
        raise ValueError(f"jobs are not chosen by {', '.join(sorted(unknown))}")
    return Job.objects.filter(**selection, pk__lte=newest)


def continue_oldest_act() -> None:
    """Work for a round on the oldest act that no other worker is at.

    An act whose jobs are refused for now is left for `REFUSED`, so that other acts have their turn.
    """
    free = Q(lease_until=None) | Q(lease_until__lt=Now()) | Q(lease_until__gt=Now() + 2 * LEASE)  # clock was set back
    act = Act.objects.filter(free, state__in=ACTING).order_by("pk").first()
    if act is None or not _lease(act, free):
        return
    give_up_at = time.monotonic() + ROUND_S
    while (goes_on := _do_chunk(act)) and time.monotonic() < give_up_at:
        pass
    mine = Act.objects.filter(pk=act.pk, cursor=act.cursor, state=ActState.RUNNING)
    mine.update(lease_until=None if goes_on else Now() + REFUSED)


def remove_old_acts() -> None:
    row_locks.delete_rows(Act.objects.filter(finished_at__lt=Now() - KEPT))


def _lease(act: Act, free: Q) -> bool:
    taken = {"state": ActState.RUNNING, "lease_until": Now() + LEASE}
    return bool(Act.objects.filter(free, pk=act.pk, state__in=ACTING).update(**taken))


def _do_chunk(act: Act) -> bool:
    """Do one chunk of an act; return True if there is more to do now."""
    most = CANCELLED_AT_ONCE if act.kind == ActKind.CANCEL else RETRIED_AT_ONCE
    jobs_left = filter_selected_jobs(act.selection, act.newest)
    if act.cursor:
        jobs_left = jobs_left.filter(pk__gt=act.cursor)
    room = min(most, act.counted - act.handled)
    ids = list(jobs_left.order_by("pk").values_list("pk", flat=True)[:room]) if room > 0 else []
    if not ids:
        _finish(act)
        return False
    if act.kind == ActKind.CANCEL:
        cancelled, left = cancel_and_count_jobs(ids)
        return _record_progress(act, ids[-1], cancelled.total(), left)
    cursor, done, left = _retry(act, ids)
    return cursor is not None and _record_progress(act, cursor, done, left) and cursor == ids[-1]


def cancel_and_count_jobs(ids: Sequence[UUID]) -> tuple[Counter[str], Left]:
    """Cancel jobs, and return their number by earlier status, and the number of those left as they were, by reason."""
    cancelled = transitions.cancel_jobs_with_parts(ids)
    states = Counter(dict(Job.objects.filter(pk__in=ids).order_by().values_list("status").annotate(Count("pk"))))
    left = states - Counter({Status.CANCELLED: cancelled.total()})
    return cancelled, Counter({f"{status} already": count for status, count in left.items()})


def _retry(act: Act, ids: list[UUID]) -> tuple[UUID | None, int, Left]:
    """Submit jobs again as far as there is room; a job that is refused for now is tried in a later round.

    For a part its whole is submitted again, once. Returns the last job that was handled, the number of jobs that were
    submitted, and the number of those left as they were, by reason.
    """
    last, done, left = None, 0, Left()
    wholes = {pk: whole for pk, whole in Job.objects.filter(pk__in=ids).values_list("pk", "whole") if whole}
    for job_id in ids:
        one = wholes.get(job_id, job_id)
        try:
            again = jobs.make_resubmission(jobs.fetch(one), alone=act.kind == ActKind.RETRY_ALONE)
            jobs.submit(dataclasses.replace(again, idempotency_key=f"act:{act.pk}:{one}", yields=True))
            done += 1
        except errors.InferenceError as error:
            if error.retryable:
                logger.info("act=%s waits for room: %s", act.pk, error)
                break
            left[error.message[:200]] += 1
        last = job_id
    return last, done, left


def _record_progress(act: Act, cursor: UUID, done: int, left: Left) -> bool:
    """Record the progress of an act; return True if this worker goes on with it.

    It does not if another worker has taken the act, or if an operator has stopped it.
    """
    mine = Act.objects.filter(pk=act.pk, state=ActState.RUNNING, cursor=act.cursor)
    total = dict(act.left)
    for reason, count in left.items():
        known = reason if reason in total or len(total) < MOST_REASONS else OTHERS
        total[known] = total.get(known, 0) + count
    if not mine.update(cursor=cursor, done=F("done") + done, left=total, lease_until=Now() + LEASE):
        return False
    act.cursor, act.done, act.left = cursor, act.done + done, total
    return True


def _finish(act: Act) -> None:
    over = {"state": ActState.DONE, "finished_at": Now(), "lease_until": None}
    if Act.objects.filter(pk=act.pk, state=ActState.RUNNING, cursor=act.cursor).update(**over):
        left = sum(act.left.values())  # the page of the act has the reasons, which may quote an input
        logger.info("act=%s is over: %s, %d done, %d left", act.pk, act.kind, act.done, left)
