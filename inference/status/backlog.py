"""Where a waiting job stands, and when it will be its turn: cheap also with a hundred thousand jobs before it."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import Count, QuerySet

from inference.catalog.specs import ModelSpec
from inference.models import Job, Priority, Status
from inference.status import workers
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
    """Of a queued job."""
    queued = Job.objects.filter(model=job.model, status=Status.QUEUED)
    count = _bounded(queued.filter(priority__lt=job.priority))
    if count < EXACT_UP_TO:
        count += _bounded(queued.filter(priority=job.priority, pk__lt=job.pk))
    if count >= EXACT_UP_TO:
        count = max(count, _estimate(job))
    return Place(position=count + 1, wait_s=workers.seconds_for(job.model, count + 1))


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
