"""The progress of batches, counted from their jobs: a query for all batches of a list."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Count, Q

from api.models import BatchStatus, FileBatch
from inference import clock
from inference.models import Job, Status

RECENT = datetime.timedelta(minutes=5)  # a rate is that of so long
COUNTED = (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)  # others have counts in their rows


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    total: int
    answered: int
    failed: int
    per_minute: float | None = None  # lines that ended lately; None unless the batch is in progress

    def __str__(self) -> str:
        return f"{self.answered:,} of {self.total:,}"

    @property
    def ended(self) -> int:
        return self.answered + self.failed

    @property
    def left_s(self) -> float | None:
        """The estimated seconds to the last answer; None while the rate is not known."""
        return (self.total - self.ended) / self.per_minute * 60 if self.per_minute else None


def measure_progress(batches: Sequence[FileBatch]) -> dict[UUID, BatchProgress]:
    """Return the progress of each batch by its id."""
    now = clock.get_database_time()
    running = [batch.id for batch in batches if batch.status in COUNTED]
    recent = Count("pk", filter=Q(finished_at__gt=now - RECENT))
    ended = Job.objects.filter(bulk__in=running, status__in=(Status.SUCCEEDED, Status.FAILED)).order_by()
    found = ended.values_list("bulk", "status").annotate(jobs=Count("pk"), lately=recent)
    counts = {(bulk, status): (jobs, lately) for bulk, status, jobs, lately in found}  # no query without ids
    return {batch.id: _make_progress(batch, counts, now) for batch in batches}


def _make_progress(
    batch: FileBatch, counts: dict[tuple[UUID, str], tuple[int, int]], now: datetime.datetime
) -> BatchProgress:
    if batch.status not in COUNTED:
        return BatchProgress(total=batch.total, answered=batch.completed, failed=batch.failed)
    answered, answered_lately = counts.get((batch.id, Status.SUCCEEDED), (0, 0))
    failed, failed_lately = counts.get((batch.id, Status.FAILED), (0, 0))
    per_minute = None
    if batch.status == BatchStatus.IN_PROGRESS and batch.in_progress_at:
        minutes = min(now - batch.in_progress_at, RECENT) / datetime.timedelta(minutes=1)
        per_minute = (answered_lately + failed_lately) / minutes if minutes > 0 else None
    return BatchProgress(total=batch.total, answered=answered, failed=failed, per_minute=per_minute)


def count_outcomes(batch: FileBatch) -> list[tuple[str, str, int]]:
    """Return what became of the batch's lines that are jobs: status, error code and number, the most frequent first."""
    jobs = Job.objects.filter(bulk=batch.id).order_by().values_list("status", "error_code")
    return list(jobs.annotate(jobs=Count("pk")).order_by("-jobs", "status", "error_code"))
