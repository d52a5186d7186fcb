"""What an operator sees first: queues, workers, batches, and what failed. Every query is bounded.

Of a job that runs in parts these are what waits and runs; it is one where outcomes are counted."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

from django.db.models import Count, Max, Min, Q, QuerySet
from django.utils import timezone

from inference.admin import display
from inference.admin.filters import COUNT_LIMIT
from inference.admin.workers import ENDED
from inference.catalog import lookup
from inference.catalog.lookup import models
from inference.ids import first_id_at
from inference.models import TERMINAL, Job, Status, Worker
from inference.status import catalog, workers

RECENT = 500  # finished jobs of a model that its batch sizes and times are taken from
BUCKETS = ((1, 1), (2, 3), (4, 7), (8, 15), (16, 31), (32, None))  # items of a batch
STOPPED_SHOWN = datetime.timedelta(hours=1)


def hour_ago() -> datetime.datetime:
    return timezone.now() - datetime.timedelta(hours=1)


def model_rows() -> list[dict[str, Any]]:
    queued, running = _by_model(Status.QUEUED), _by_model(Status.RUNNING)
    living = list(workers.living())
    serving, runs = workers.count_served(living), catalog.count(living)
    gone = sorted((queued.keys() | running.keys() | runs.keys()) - models().keys())
    return [
        {
            "name": name,
            "spec": models().get(name),  # none of a model that is gone from the file, and has jobs left
            "queued": queued.get(name),
            "running": running.get(name),
            "workers": serving[name],
            "runs": sorted(runs.get(name, {}).items()),
            **_recent(name),
        }
        for name in (*models(), *gone)
    ]


def file_problems() -> list[str]:
    """Why models.toml is not taken over: by this process, or by a worker, which may have another one."""
    found = [lookup.problem(), *((worker.catalog or {}).get("problem", "") for worker in workers.living())]
    return sorted(set(filter(None, found)))


def _by_model(status: Status) -> dict[str, Any]:
    """One status at a time: only so is its own index used."""
    rows = Job.objects.filter(status=status, parts=None).order_by().values("model")
    return {row["model"]: row for row in rows.annotate(jobs=Count("pk"), oldest=Min("created_at"))}


def _recent(model: str) -> dict[str, Any]:
    """Of the jobs that succeeded last: medians, and the batches that they ran in."""
    columns = ("batch_size", "created_at", "started_at", "finished_at")
    ran = Job.objects.filter(model=model, status=Status.SUCCEEDED, parts=None)
    jobs = list(ran.only(*columns)[:RECENT])
    sizes = [job.batch_size for job in jobs if job.batch_size]
    return {
        "wait": _median(job.queue_wait for job in jobs),
        "run": _median(job.run_time for job in jobs),
        "mean_batch": sum(sizes) / len(sizes) if sizes else None,
        "bars": _bars(sizes) if sizes else [],
    }


def _median(values: Iterable[datetime.timedelta | None]) -> str:
    known = sorted(value for value in values if value is not None)
    return display.duration(known[len(known) // 2] if known else None)


def _bars(sizes: list[int]) -> list[dict[str, Any]]:
    """Jobs by the size of their batch; `percent` is of the tallest bar."""
    counts = [sum(low <= size <= (high or size) for size in sizes) for low, high in BUCKETS]
    labels = [f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}" for low, high in BUCKETS]
    return [
        {"label": label, "jobs": count, "percent": 100 * count / max(counts)}
        for label, count in zip(labels, counts, strict=True)
    ]


def worker_rows() -> QuerySet[Worker]:
    since = timezone.now() - STOPPED_SHOWN
    return Worker.objects.filter(~Q(state__in=ENDED) | Q(heartbeat_at__gte=since))[:50]


def failure_rows() -> list[dict[str, Any]]:
    failed = Job.objects.filter(status=Status.FAILED, id__gte=first_id_at(hour_ago()), whole=None).order_by()
    groups = failed.values("model", "error_code").annotate(jobs=Count("pk"), latest_at=Max("finished_at"))
    return [
        {**group, "latest": failed.filter(model=group["model"], error_code=group["error_code"]).latest("finished_at")}
        for group in groups.order_by("-jobs")
    ]


def finished_in_last_hour() -> dict[str, str]:
    """By status: how many of the jobs accepted in the last hour are finished, counted up to a limit."""
    recent = Job.objects.filter(id__gte=first_id_at(hour_ago()), whole=None).order_by()
    return {status: _bounded(recent.filter(status=status).values("pk")[:COUNT_LIMIT].count()) for status in TERMINAL}


def _bounded(count: int) -> str:
    return f"{count:,}+" if count == COUNT_LIMIT else f"{count:,}"
