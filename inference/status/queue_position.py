"""The place of a waiting job, and when it will be its turn.

Both are cheap to find, also with a hundred thousand jobs before it.
"""

import functools
import math
import sys
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import Count, QuerySet

from inference.batching.shares import ONE_IN
from inference.catalog import lookup
from inference.catalog.specs import ModelSpec
from inference.models import Job, Status
from inference.status import owner_queues, workers
from inference.status.workers import Remembered
from inference.values.priority import PATIENT

_FIRST = (
    "SELECT * FROM (SELECT model, priority, id FROM inference_job WHERE status = 'queued' AND model = %s"
    " ORDER BY priority, id LIMIT 1) AS queued"
)
EXACT_UP_TO = 1000  # jobs ahead that are counted one by one; more are estimated from times of arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePosition:
    position: int  # 1 for the job that goes next
    wait_s: float | None  # seconds; None while the model's speed is not known


class _PriorityQueue(NamedTuple):
    """The waiting jobs of one model and priority."""

    jobs: int
    first: UUID
    last: UUID


def find_position(job: Job) -> QueuePosition:
    """Return where a queued job stands, by order of arrival or by the turns of owners, whichever is sooner."""
    queued = Job.objects.filter(model=job.model, status=Status.QUEUED)
    count = _count_up_to_limit(queued.filter(priority__lt=job.priority))
    if count < EXACT_UP_TO:
        count += _count_up_to_limit(queued.filter(priority=job.priority, pk__lt=job.pk))
    if count >= EXACT_UP_TO:
        count = max(count, _estimate_jobs_ahead(job))
    if count > 1 and (counts := owner_queues.count_waiting_jobs(job.model, job.priority)):
        own = _count_up_to_limit(queued.filter(priority=job.priority, owner=job.owner_id, pk__lt=job.pk))
        if own < EXACT_UP_TO:
            count = min(count, _count_ahead_in_turn(job.model, counts, job.priority, job.owner_id, own))
    return QueuePosition(position=count + 1, wait_s=workers.predict_jobs_s(job.model, count + 1))


def count_jobs_ahead(model: str, priority: int, owner: Hashable) -> int:
    """Return about how many jobs go before the next one of this owner.

    It is `sys.maxsize` if too many jobs wait to count them.
    """
    counts = owner_queues.count_waiting_jobs(model, priority)
    if counts is None:
        return sys.maxsize
    return _count_ahead_in_turn(model, counts, priority, owner, counts.get((priority, owner), 0))


def _count_ahead_in_turn(
    model: str, counts: Mapping[tuple[int, Any], int], priority: int, owner: Hashable, own: int
) -> int:
    """Return how many jobs go before one that has `own` jobs of its owner before it.

    Up to `own` + 1 jobs of each other owner go first. Jobs of higher priorities leave it one batch in `ONE_IN`.
    """
    higher, others = 0, 0
    for (of, job_owner), jobs in counts.items():
        if of < priority:
            higher += jobs
        elif of == priority and job_owner != owner:
            others += min(jobs, own + 1)
    spec = lookup.get_catalog_or_empty().get(model)
    most = spec.max_batch_size if spec else 1
    batches = math.ceil((own + others + 1) / most)
    return own + others + min(higher, (ONE_IN - 1) * batches * most)


def _count_up_to_limit(jobs: QuerySet[Job]) -> int:
    return jobs.order_by().values("pk")[:EXACT_UP_TO].count()


def count_jobs_above_low(model: str) -> int:
    """Count the jobs that can keep others out of the model's queue: all but those of low priority."""
    return Job.objects.filter(model=model, status=Status.QUEUED, priority__lt=PATIENT).order_by().count()


def count_queued_jobs(spec: ModelSpec) -> int:
    """Count the jobs that wait, up to the model's limit."""
    return Job.objects.filter(model=spec.name, status=Status.QUEUED).order_by().values("pk")[: spec.max_queued].count()


def find_first_queued(models: Iterable[str]) -> dict[str, tuple[int, UUID]]:
    """Return by model the priority and id of the job that goes first, for models of which one waits.

    It is one query, which reads one index entry for each model.
    """
    names = list(models)
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join([_FIRST] * len(names)), names)
        return {model: (priority, UUID(str(job_id))) for model, priority, job_id in cursor.fetchall()}


def extract_creation_ms(job_id: UUID) -> int:
    """Return when a job was made, in milliseconds since 1970, from its UUIDv7."""
    return job_id.int >> 80


def _estimate_jobs_ahead(job: Job) -> int:
    """Estimate the number of jobs ahead.

    Those of the same priority count as if they had come evenly between the first and the last of them.
    """
    lines = _get_queues_by_priority(job.model)
    ahead = sum(line.jobs for priority, line in lines.items() if priority < job.priority)
    if own := lines.get(job.priority):
        first, last, here = map(extract_creation_ms, (own.first, own.last, job.pk))
        share = (here - first) / (last - first) if last > first else 1.0
        ahead += int(own.jobs * min(max(share, 0.0), 1.0))
    return ahead


_remembered: dict[str, Remembered[dict[int, _PriorityQueue]]] = {}


def _get_queues_by_priority(model: str) -> dict[int, _PriorityQueue]:
    return _remembered.setdefault(model, Remembered(functools.partial(_read_lines, model)))()


def _read_lines(model: str) -> dict[int, _PriorityQueue]:
    """Return the waiting jobs of a model by priority.

    The first and the last id are read from the index, as PostgreSQL before 18 cannot aggregate the smallest UUID.
    """
    lines, nobody = {}, UUID(int=0)
    queued = Job.objects.filter(model=model, status=Status.QUEUED)
    for priority, jobs in queued.order_by().values_list("priority").annotate(Count("pk")):
        ids = queued.filter(priority=priority).values_list("pk", flat=True)
        first, last = ids.order_by("priority", "pk").first(), ids.order_by("-priority", "-pk").first()
        lines[priority] = _PriorityQueue(jobs, first or nobody, last or nobody)
    return lines
