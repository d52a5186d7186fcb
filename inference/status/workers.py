"""The workers that are alive, by the database's clock.

When that clock is set, a living worker is missing here until its next heartbeat. Its jobs are not given back then
(`inference.upkeep.heartbeat_monitor`).
"""

from __future__ import annotations

import datetime
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.conf import settings
from django.db import OperationalError
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from inference import budget, clock
from inference.catalog import lookup
from inference.fields.worker_documents import ModelState, ReplicaSnapshot
from inference.models import ENDED, Worker, WorkerState
from inference.store.connections import release_connection_while_waiting

RESTING = (WorkerState.DRAINING, WorkerState.DRAINED)
PRESENT = (WorkerState.STARTING, WorkerState.READY, WorkerState.DEGRADED, WorkerState.STOPPING, *RESTING)
SERVING = (WorkerState.READY, WorkerState.DEGRADED)
SERVING_OR_STARTING = (WorkerState.STARTING, *SERVING)  # while it starts, a worker runs what it has loaded so far
ENDED_SHOWN = datetime.timedelta(hours=1)
REMEMBERED_S = 1.0
LATE_BEATS = 3  # missed heartbeats after which a worker's row no longer shows what it runs
PATIENCE_S = 5.0  # seconds that a thread waits for another thread's read
T = TypeVar("T")


def select_living_workers() -> QuerySet[Worker]:
    """Return the workers that were heard lately.

    A heartbeat in the future was written before the clock was set back. If it is further away than `WORKER_SILENT_S`,
    the worker does not count as living before its next heartbeat.
    """
    return Worker.objects.filter(state__in=PRESENT, heartbeat_at__range=_make_recent_range())


def select_silent_workers() -> QuerySet[Worker]:
    """Return the workers that are present by their rows and were not heard lately."""
    return Worker.objects.filter(state__in=PRESENT).exclude(heartbeat_at__range=_make_recent_range())


def make_late_heartbeat_condition() -> Q:
    """Return the condition for workers that missed some heartbeats: their rows no longer show what they run."""
    return Q(heartbeat_at__lt=Now() - datetime.timedelta(seconds=LATE_BEATS * settings.WORKER_HEARTBEAT_S))


def find_gpu_conflicts(worker: Worker) -> dict[str, list[str]]:
    """Return the GPUs that this worker shares with others, by the name of the other worker of the same host.

    Workers of one host are recognized by their names. They do not divide the memory of these GPUs between them.
    """
    host, own = worker.name.partition("@")[2], _list_gpus(worker)
    # The worker itself may have rows of earlier starts under its name.
    others = select_living_workers().filter(name__endswith=f"@{host}").exclude(name=worker.name)
    return {other.name: sorted(both) for other in others.order_by("name") if (both := own & _list_gpus(other))}


def _list_gpus(worker: Worker) -> set[str]:
    return {part for device in worker.devices for part in device.split("+")} - {"cpu"}


def _make_recent_range() -> tuple[Any, Any]:
    silent = datetime.timedelta(seconds=settings.WORKER_SILENT_S)
    return Now() - silent, Now() + silent


def exclude_long_ended_workers(rows: QuerySet[Worker]) -> QuerySet[Worker]:
    """Return the rows without those of workers that ended long ago."""
    return rows.exclude(state__in=ENDED, heartbeat_at__lt=clock.get_database_time() - ENDED_SHOWN)


class Remembered(Generic[T]):
    """The result of `read`, remembered for a second, so that it is cheap to ask for on every request.

    Threads that ask during a read share its outcome, also its failure. Otherwise many threads would wait for a database
    that is away, one after the other. A read that failed because the time of its request was spent is no sign of a
    database that is away: the other threads read again.
    """

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._reading: Future[T] | None = None
        self._value: T | None = None
        self._read_at = float("-inf")

    def __call__(self) -> T:
        while (value := self._get_fresh_value()) is None:
            try:
                return self._read_together()
            except CancelledError:
                continue
        return value

    def _read_together(self) -> T:
        with self._lock:
            reading = self._reading  # read once: another thread may reset it meanwhile
            if mine := reading is None:
                reading = self._reading = Future()
        if mine:
            return self._read_and_share(reading)
        return self._wait_for(reading)

    def _wait_for(self, reading: Future[T]) -> T:
        try:
            with release_connection_while_waiting(PATIENCE_S) as patience_s:
                return reading.result(patience_s)
        except TimeoutError as error:
            raise OperationalError("the database has not answered another request yet that asks the same") from error

    def _read_and_share(self, reading: Future[T]) -> T:
        try:
            value = self._read()
        except BaseException as error:
            self._reading = None
            if budget.get_remaining_s():
                reading.set_exception(error)
            else:
                reading.cancel()
            raise
        self._value, self._read_at = value, time.monotonic()
        self._reading = None
        reading.set_result(value)
        return value

    def _get_fresh_value(self) -> T | None:
        return self._value if time.monotonic() < self._read_at + REMEMBERED_S else None

    def forget(self) -> None:
        self._value = None


def count_workers_by_model(rows: Iterable[Worker]) -> Counter[str]:
    """Count by model how many of these living workers serve it: the one rule for clients, /readyz and the admin."""
    return Counter(name for worker in rows for name in worker.model_names)


@Remembered
def count_living_workers_by_model() -> Counter[str]:
    return count_workers_by_model(select_living_workers().only("model_names"))


@Remembered
def measure_model_speeds() -> dict[str, float]:
    """Return by model the items a second of all its replicas together, while they run."""
    total: dict[str, float] = {}
    for replicas, speeds in select_living_workers().values_list("replicas_ready", "speeds"):
        for model, speed in speeds.items():
            total[model] = total.get(model, 0.0) + speed * max(1, replicas)
    return total


@Remembered
def read_serving_replicas() -> list[ReplicaSnapshot]:
    rows = select_living_workers().filter(state__in=SERVING_OR_STARTING).values_list("replicas", flat=True)
    return [replica for replicas in rows for replica in replicas.values()]


def read_model_notes() -> dict[str, str]:
    """Return by model how it is run, if that is another way than for most."""
    return {name: note for replica in read_serving_replicas() for name, note in replica.notes.items()}


def read_model_facts() -> dict[str, Mapping[str, Any]]:
    """Return by model what its engine knows of its weights, such as the kind of pooling or the names of labels."""
    return {name: facts for replica in read_serving_replicas() for name, facts in replica.facts.items()}


def count_serving_workers(model: str) -> int:
    """Return how many living workers serve the model.

    A count of zero is never remembered: it is read again.
    """
    if not count_living_workers_by_model().get(model):
        count_living_workers_by_model.forget()
    return count_living_workers_by_model()[model]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPresence:
    """The presence of a model in the memory of the living workers."""

    workers: int = 0  # workers that have it in memory
    bytes: int | None = None  # memory of one replica: measured, or for a lazy model estimated at first
    load_s: float | None = None  # seconds that the load of a lazy model takes


@Remembered
def find_memory_presence() -> dict[str, MemoryPresence]:
    found: dict[str, MemoryPresence] = {}
    rows = select_living_workers().filter(state__in=SERVING_OR_STARTING).values_list("catalog", flat=True)
    for catalog in rows:
        for entry in catalog.models:
            before = found.get(entry.name, MemoryPresence())
            found[entry.name] = MemoryPresence(
                workers=before.workers + (entry.state is ModelState.READY),
                bytes=entry.memory or before.bytes,
                load_s=entry.load_s or before.load_s,
            )
    return found


def predict_jobs_s(model: str, jobs: int) -> float | None:
    """Return how many seconds so many jobs take at the measured speed.

    The load of a lazy model that no worker has in memory is added. The result is None while neither was measured.
    """
    speed, load_s = measure_model_speeds().get(model), _find_load_time_s(model)
    return jobs / speed + load_s if speed else load_s or None


def _find_load_time_s(model: str) -> float:
    spec = lookup.get_catalog_or_empty().get(model)
    if spec is None or not spec.is_lazy:
        return 0.0
    place = find_memory_presence().get(model, MemoryPresence())
    return 0.0 if place.workers else place.load_s or 0.0
