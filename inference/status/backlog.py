"""Where a waiting job stands, and when it will be its turn: cheap also with a hundred thousand jobs before it."""

import functools
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import Count, QuerySet

from inference.batching.shares import ONE_IN
from inference.catalog import lookup
from inference.catalog.specs import ModelSpec
from inference.models import Job, Priority, Status
from inference.status import owners, workers
from inference.status.workers import Remembered

_FIRST = (
    "SELECT * FROM (SELECT model, priority, id FROM inference_job WHERE status = 'queued' AND model = %s"
    " ORDER BY priority, id LIMIT 1) AS queued"
)
EXACT_UP_TO = 1000  # jobs ahead that are counted one by one; beyond it, times of arrival tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    position: int  # 1: the next
    wait_s: float | None  # None while the model's speed is not known


class _Line(NamedTuple):
    """The waiting jobs of one model and priority."""

    jobs: int
    first: UUID
    last: UUID


def place(job: Job) -> Place:
    """Return where a queued job stands, by the order of arrival or by the turns of owners, which of them is sooner."""
    queued = Job.objects.filter(model=job.model, status=Status.QUEUED)
    count = _bounded(queued.filter(priority__lt=job.priority))
    if count < EXACT_UP_TO:
        count += _bounded(queued.filter(priority=job.priority, pk__lt=job.pk))
    if count >= EXACT_UP_TO:
        count = max(count, _estimate(job))
    if count > 1 and (counts := owners.counts(job.model, job.priority)):
        own = _bounded(queued.filter(priority=job.priority, owner=job.owner_id, pk__lt=job.pk))
        if own < EXACT_UP_TO:
            count = min(count, _in_turn(job.model, counts, job.priority, job.owner_id, own))
    return Place(position=count + 1, wait_s=workers.seconds_for(job.model, count + 1))


def ahead_of_next(model: str, priority: int, owner: Any) -> int:
    """Return how many jobs go before the next one of this owner, about; no bound where too many wait to tell."""
    counts = owners.counts(model, priority)
    return sys.maxsize if counts is None else _in_turn(model, counts, priority, owner, counts.get((priority, owner), 0))


def _in_turn(model: str, counts: Mapping[tuple[int, Any], int], priority: int, owner: Any, own: int) -> int:
    """Return how many jobs go before one that has `own` of its owner before it: of each other owner as many, and of
    higher priorities no more than leaves one batch in `ONE_IN`."""
    higher, others = 0, 0
    for (of, whose), jobs in counts.items():
        if of < priority:
            higher += jobs
        elif of == priority and whose != owner:
            others += min(jobs, own + 1)
    spec = lookup.known_models().get(model)
    most = spec.max_batch_size if spec else 1
    batches = math.ceil((own + others + 1) / most)
    return own + others + min(higher, (ONE_IN - 1) * batches * most)


def _bounded(jobs: QuerySet[Job]) -> int:
    return jobs.order_by().values("pk")[:EXACT_UP_TO].count()


def count_to_limit(model: str) -> int:
    """Count the jobs that keep others out of the model's queue: all but those of low priority."""
    return Job.objects.filter(model=model, status=Status.QUEUED, priority__lt=Priority.LOW).order_by().count()


def queued(spec: ModelSpec) -> int:
    """Jobs that wait, counted up to the model's limit."""
    return Job.objects.filter(model=spec.name, status=Status.QUEUED).order_by().values("pk")[: spec.max_queued].count()


def first_queued(models: Iterable[str]) -> dict[str, tuple[int, UUID]]:
    """By model: priority and id of the job that goes first, where one waits. One query, an entry of an index each."""
    names = list(models)
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join([_FIRST] * len(names)), names)
        return {model: (priority, UUID(str(job_id))) for model, priority, job_id in cursor.fetchall()}


def milliseconds(job_id: UUID) -> int:
    """When a job was made, out of its UUIDv7."""
    return job_id.int >> 80


def _estimate(job: Job) -> int:
    """Jobs ahead, as if those of its priority had come evenly between the first and the last of them."""
    lines = _lines_of(job.model)
    ahead = sum(line.jobs for priority, line in lines.items() if priority < job.priority)
    if own := lines.get(job.priority):
        first, last, here = map(milliseconds, (own.first, own.last, job.pk))
        share = (here - first) / (last - first) if last > first else 1.0
        ahead += int(own.jobs * min(max(share, 0.0), 1.0))
    return ahead


_remembered: dict[str, Remembered[dict[int, _Line]]] = {}


def _lines_of(model: str) -> dict[int, _Line]:
    return _remembered.setdefault(model, Remembered(functools.partial(_read_lines, model)))()


def _read_lines(model: str) -> dict[int, _Line]:
    """The ends of a line are read from the index: PostgreSQL before 18 has no smallest UUID."""
    lines, nobody = {}, UUID(int=0)
    queued = Job.objects.filter(model=model, status=Status.QUEUED)
    for priority, jobs in queued.order_by().values_list("priority").annotate(Count("pk")):
        ids = queued.filter(priority=priority).values_list("pk", flat=True)
        first, last = ids.order_by("priority", "pk").first(), ids.order_by("-priority", "-pk").first()
        lines[priority] = _Line(jobs, first or nobody, last or nobody)
    return lines


def forget() -> None:
    _remembered.clear()
    owners.forget()
