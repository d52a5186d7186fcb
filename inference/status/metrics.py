"""What /metrics says, in Prometheus's text format: queues, workers and recent outcomes, read from the rows.

Reading costs the same whichever process is asked, and what it shows survives a restart. Jobs that finished long ago are
not counted: counting them would cost more with every day of operation.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any

from django.db.models import Count, Min
from django.utils import timezone

from inference.ids import first_id_at
from inference.models import WAITING, Job, Status, Worker
from inference.status import workers
from inference.status.workers import Remembered
from inference.waiting import finished

WINDOW = datetime.timedelta(minutes=1)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[dict[str, str], float]


def text() -> str:
    return _rows() + _family(
        "requests_waiting", "Requests of this web process that wait.", [({}, len(finished.listener))]
    )


def _text_of_rows() -> str:
    living = list(workers.living())
    return "".join(
        [
            _family("jobs_waiting", "Jobs by model and status.", _waiting()),
            _family("oldest_queued_seconds", "Age of the oldest queued job.", _oldest()),
            _family("jobs_recent", "Jobs made within the last minute, by model and outcome.", _recent()),
            _family("workers", "Living workers by state.", _count(worker.state for worker in living)),
            _family("replicas_ready", "Replicas with their models loaded.", _each(living, "replicas_ready")),
            _family("replicas_busy", "Replicas that run a batch.", _each(living, "replicas_busy")),
            _family("jobs_held", "Jobs that a worker has fetched and not started.", _each(living, "held")),
            _family("jobs_finished_total", "Jobs since the worker's start.", _each(living, "finished"), "counter"),
        ]
    )


_rows = Remembered(_text_of_rows)


def forget() -> None:
    _rows.forget()


def _waiting() -> Iterator[Sample]:
    for status in WAITING:
        counts = Job.objects.filter(status=status).order_by().values_list("model").annotate(Count("pk"))
        for model, count in counts:
            yield {"model": model, "status": status.value}, count


def _oldest() -> Iterator[Sample]:
    queued = Job.objects.filter(status=Status.QUEUED).order_by().values_list("model").annotate(Min("created_at"))
    for model, created_at in queued:
        yield {"model": model}, (timezone.now() - created_at).total_seconds()


def _recent() -> Iterator[Sample]:
    recent = Job.objects.filter(pk__gte=first_id_at(timezone.now() - WINDOW)).exclude(status__in=WAITING)
    for model, status, code, count in (
        recent.order_by().values_list("model", "status", "error_code").annotate(Count("pk"))
    ):
        yield {"model": model, "status": status, "code": code}, count


def _count(names: Iterable[str]) -> Iterator[Sample]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    for name, count in counts.items():
        yield {"state": name}, count


def _each(living: Iterable[Worker], field: str) -> Iterator[Sample]:
    for worker in living:
        yield {"worker": worker.name, "pid": str(worker.pid)}, getattr(worker, field)


def _family(name: str, description: str, samples: Iterable[Sample], kind: str = "gauge") -> str:
    lines = [f"# HELP inference_{name} {description}", f"# TYPE inference_{name} {kind}"]
    lines += [f"inference_{name}{_labels(labels)} {value:g}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, Any]) -> str:
    escaped = [f'{name}="{_escape(str(value))}"' for name, value in labels.items()]
    return f"{{{','.join(escaped)}}}" if escaped else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
