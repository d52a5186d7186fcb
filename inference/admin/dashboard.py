"""What an operator sees first: queues, workers, batches, and what failed. Every query is bounded."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from django.db.models import Count, Max, Min, Q
from django.utils import timezone

from inference.admin import display
from inference.admin.filters import COUNT_LIMIT
from inference.admin.workers import ENDED, live_state
from inference.catalog.lookup import models
from inference.catalog.specs import ModelSpec
from inference.ids import first_id_at
from inference.models import TERMINAL, Job, Status, Worker
from inference.status import workers

RECENT = 500  # finished jobs of a model that its batch sizes and times are taken from
BUCKETS = ((1, 1), (2, 3), (4, 7), (8, 15), (16, 31), (32, None))  # items of a batch
STOPPED_SHOWN = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Jobs that ran in batches of one size class. `percent` is of the largest class."""

    label: str
    jobs: int
    percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The jobs of one model in one status."""

    jobs: int
    oldest: datetime.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    name: str
    limit: int
    queued: int
    running: int
    oldest: str  # age of the oldest queued job
    workers: int  # that serve it
    mean_batch: float | None
    wait: str  # median of the recent jobs, as are the next
    run: str
    bars: tuple[Bar, ...]

    @property
    def fill_percent(self) -> float:
        return min(100.0, 100 * self.queued / self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    worker: Worker
    state: str
    heartbeat: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    model: str
    code: str
    jobs: int
    latest: Job


def hour_ago() -> datetime.datetime:
    return timezone.now() - datetime.timedelta(hours=1)


def model_rows() -> list[ModelRow]:
    queued, running = _by_model(Status.QUEUED), _by_model(Status.RUNNING)
    serving = workers.count_served(workers.living())
    return [
        _model_row(spec, queued.get(spec.name), running.get(spec.name), serving[spec.name])
        for spec in models().values()
    ]


def _by_model(status: Status) -> dict[str, Waiting]:
    """One status at a time: only so is its own index used."""
    rows = Job.objects.filter(status=status).order_by().values_list("model").annotate(Count("pk"), Min("created_at"))
    return {model: Waiting(jobs=count, oldest=oldest) for model, count, oldest in rows}


def _model_row(spec: ModelSpec, queued: Waiting | None, running: Waiting | None, workers: int) -> ModelRow:
    columns = ("batch_size", "created_at", "started_at", "finished_at")
    recent = list(Job.objects.filter(model=spec.name, status=Status.SUCCEEDED).only(*columns)[:RECENT])
    sizes = [job.batch_size for job in recent if job.batch_size]
    return ModelRow(
        name=spec.name,
        limit=spec.max_queued,
        queued=queued.jobs if queued else 0,
        running=running.jobs if running else 0,
        oldest=display.duration(timezone.now() - queued.oldest) if queued else display.NONE,
        workers=workers,
        mean_batch=sum(sizes) / len(sizes) if sizes else None,
        wait=_median(job.queue_wait for job in recent),
        run=_median(job.run_time for job in recent),
        bars=tuple(_bars(sizes)),
    )


def _median(values: Iterable[datetime.timedelta | None]) -> str:
    known = sorted(value for value in values if value is not None)
    return display.duration(known[len(known) // 2]) if known else display.NONE


def _bars(sizes: list[int]) -> Iterator[Bar]:
    counts = [sum(low <= size <= (high or size) for size in sizes) for low, high in BUCKETS]
    for (low, high), count in zip(BUCKETS, counts if sizes else (), strict=False):
        label = f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}"
        yield Bar(label=label, jobs=count, percent=100 * count / max(counts))


def worker_rows() -> list[WorkerRow]:
    since = timezone.now() - STOPPED_SHOWN
    shown = Worker.objects.filter(~Q(state__in=ENDED) | Q(heartbeat_at__gte=since))[:50]
    return [WorkerRow(worker=row, state=live_state(row), heartbeat=display.ago(row.heartbeat_at)) for row in shown]


def failure_rows() -> list[FailureRow]:
    failed = Job.objects.filter(status=Status.FAILED, id__gte=first_id_at(hour_ago())).order_by()
    groups = failed.values("model", "error_code").annotate(jobs=Count("pk"), latest_at=Max("finished_at"))
    return [
        FailureRow(
            model=group["model"],
            code=group["error_code"],
            jobs=group["jobs"],
            latest=failed.filter(model=group["model"], error_code=group["error_code"]).latest("finished_at"),
        )
        for group in groups.order_by("-jobs")
    ]


def finished_in_last_hour() -> dict[str, str]:
    """By status: how many of the jobs accepted in the last hour are finished, counted up to a limit."""
    recent = Job.objects.filter(id__gte=first_id_at(hour_ago())).order_by()
    return {status: _bounded(recent.filter(status=status).values("pk")[:COUNT_LIMIT].count()) for status in TERMINAL}


def _bounded(count: int) -> str:
    return f"{count:,}+" if count == COUNT_LIMIT else f"{count:,}"
