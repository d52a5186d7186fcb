"""Which workers are alive, by the database's clock. Where that is set, a living worker is missed until its next
heartbeat; nothing is taken from it (`inference.upkeep.observer`).
"""

from __future__ import annotations

import datetime
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.conf import settings
from django.db import OperationalError
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from inference import budget, clock
from inference.catalog import lookup
from inference.models import ENDED, Worker, WorkerState
from inference.waiting.compute_slots import lending

RESTING = (WorkerState.DRAINING, WorkerState.DRAINED)
PRESENT = (WorkerState.STARTING, WorkerState.READY, WorkerState.DEGRADED, WorkerState.STOPPING, *RESTING)
SERVING = (WorkerState.READY, WorkerState.DEGRADED)
ENDED_SHOWN = datetime.timedelta(hours=1)
REMEMBERED_S = 1.0
LATE_BEATS = 3  # heartbeats that a worker misses until its row tells nothing of what it runs
PATIENCE_S = 5.0  # with whoever reads
T = TypeVar("T")


def living() -> QuerySet[Worker]:
    """Those heard lately. A heartbeat in the future was written before the clock was set back: the next one tells."""
    return Worker.objects.filter(state__in=PRESENT, heartbeat_at__range=_lately())


def silent() -> QuerySet[Worker]:
    """Those whose rows say that they are there, and that were not heard lately."""
    return Worker.objects.filter(state__in=PRESENT).exclude(heartbeat_at__range=_lately())


def is_late() -> Q:
    """Select workers that have missed some heartbeats: their rows tell nothing of what they run."""
    return Q(heartbeat_at__lt=Now() - datetime.timedelta(seconds=LATE_BEATS * settings.WORKER_HEARTBEAT_S))


def beside(worker: Worker) -> dict[str, list[str]]:
    """By worker of the same host, as far as their names tell: the GPUs that it has too, and whose memory they do not
    share out."""
    host, own = worker.name.partition("@")[2], _gpus(worker)
    others = living().filter(name__endswith=f"@{host}").exclude(name=worker.name)  # nor an earlier start of its own
    return {other.name: sorted(both) for other in others.order_by("name") if (both := own & _gpus(other))}


def _gpus(worker: Worker) -> set[str]:
    return {part for device in worker.devices for part in device.split("+")} - {"cpu"}


def _lately() -> tuple[Any, Any]:
    silent = datetime.timedelta(seconds=settings.WORKER_SILENT_S)
    return Now() - silent, Now() + silent


def shown(rows: QuerySet[Worker]) -> QuerySet[Worker]:
    """But those that ended long ago."""
    return rows.exclude(state__in=ENDED, heartbeat_at__lt=clock.now() - ENDED_SHOWN)


class Remembered(Generic[T]):
    """What `read` returned, for a second: cheap to ask on every request. Who asks during a read shares its outcome,
    also when it fails: else many threads would wait for a database that is away, one after the other. A read that
    failed as its request's time was spent says nothing of the database: the others read again."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._reading: Future[T] | None = None
        self._value: T | None = None
        self._read_at = float("-inf")

    def __call__(self) -> T:
        while (value := self._fresh()) is None:
            try:
                return self._read_together()
            except CancelledError:
                continue
        return value

    def _read_together(self) -> T:
        with self._lock:
            reading = self._reading  # looked at once: who reads may end meanwhile
            if mine := reading is None:
                reading = self._reading = Future()
        if mine:
            return self._lead(reading)
        return self._wait_for(reading)

    def _wait_for(self, reading: Future[T]) -> T:
        try:
            with lending(PATIENCE_S) as patience_s:
                return reading.result(patience_s)
        except TimeoutError as error:
            raise OperationalError("the database has not answered another request yet that asks the same") from error

    def _lead(self, reading: Future[T]) -> T:
        try:
            value = self._read()
        except BaseException as error:
            self._reading = None
            if budget.left_s():
                reading.set_exception(error)
            else:
                reading.cancel()
            raise
        self._value, self._read_at = value, time.monotonic()
        self._reading = None
        reading.set_result(value)
        return value

    def _fresh(self) -> T | None:
        return self._value if time.monotonic() < self._read_at + REMEMBERED_S else None

    def forget(self) -> None:
        self._value = None


def count_served(rows: Iterable[Worker]) -> Counter[str]:
    """By model: how many of these living workers serve it. The one rule: for clients, /readyz and the admin."""
    return Counter(name for worker in rows for name in worker.model_names)


@Remembered
def served_models() -> Counter[str]:
    return count_served(living().only("model_names"))


@Remembered
def speeds() -> dict[str, float]:
    """By model: items a second of all replicas together, while they run."""
    total: dict[str, float] = {}
    for replicas, speeds in living().values_list("replicas_ready", "speeds"):
        for model, speed in speeds.items():
            total[model] = total.get(model, 0.0) + speed * max(1, replicas)
    return total


@Remembered
def notes() -> dict[str, str]:
    """By model: how it is run, if in another way than most."""
    rows = living().filter(state__in=SERVING).values_list("replicas", flat=True)
    found = (replica.get("notes", {}) for replicas in rows for replica in replicas.values())
    return {name: note for notes in found for name, note in notes.items()}


def serving(model: str) -> int:
    """How many living workers serve the model. That there is none is never remembered, but looked for again."""
    if not served_models().get(model):
        served_models.forget()
    return served_models()[model]


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemory:
    """A model's place in the memory of the living workers."""

    workers: int = 0  # that have it there
    bytes: int | None = None  # that it takes in a replica: measured, or of a lazy model at first estimated
    load_s: float | None = None  # that loading a lazy model takes


@Remembered
def in_memory() -> dict[str, InMemory]:
    found: dict[str, InMemory] = {}
    for catalog in living().filter(state__in=SERVING).values_list("catalog", flat=True):
        for entry in (catalog or {}).get("models", ()):
            before = found.get(entry["name"], InMemory())
            found[entry["name"]] = InMemory(
                workers=before.workers + (entry["state"] == "ready"),
                bytes=entry.get("memory") or before.bytes,
                load_s=entry.get("load_s") or before.load_s,
            )
    return found


def seconds_for(model: str, jobs: int) -> float | None:
    """How long so many jobs take at the measured speed, after the load of a lazy model that is in no memory; None while
    neither was measured."""
    speed, load_s = speeds().get(model), _load_s(model)
    return jobs / speed + load_s if speed else load_s or None


def _load_s(model: str) -> float:
    spec = lookup.known_models().get(model)
    if spec is None or not spec.is_lazy:
        return 0.0
    place = in_memory().get(model, InMemory())
    return 0.0 if place.workers else place.load_s or 0.0
