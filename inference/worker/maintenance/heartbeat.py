"""A worker's row and its heartbeat, which has a thread of its own."""

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.db.models.functions import Now

from inference import clock
from inference.connection_retries import Backoff
from inference.fields.worker_documents import CatalogSnapshot, CostSnapshot, GenerationSnapshot, ReplicaSnapshot
from inference.figures import timeline_marks
from inference.models import Worker, WorkerState
from inference.status import workers
from inference.store import pauses_and_drains
from inference.worker.chore_runner import run_chore
from inference.worker.replicas.devices import Plan
from inference.worker.replicas.registry import OperatorIntents

logger = logging.getLogger(__name__)

LAST_S = 5.0  # the wait at the end for a heartbeat in progress, which would mark the worker as alive
LATE_S = settings.WORKER_SILENT_S / 2  # a heartbeat is late if it comes so many seconds after the one before


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """The state of the main process, for the worker's row."""

    state: WorkerState
    model_names: Sequence[str]  # models that are served, in the sense of `inference.status.workers`
    replicas: Mapping[str, ReplicaSnapshot]  # by index
    catalog: CatalogSnapshot
    error: str
    connected: bool  # to the broker
    replicas_ready: int
    replicas_busy: int
    held: int
    finished: int
    speeds: Mapping[str, float]
    reached: Mapping[str, Mapping[int, float]]  # by model and priority: creation time of the newest job started
    generation: Mapping[str, GenerationSnapshot]  # by model that generates step by step
    costs: Mapping[str, CostSnapshot]  # by model
    looped_at: float  # monotonic: the last sweep of the event loop


class Heartbeat(threading.Thread):
    """The thread of the main process that writes the worker's heartbeat. It does nothing that could take long."""

    def __init__(self, plan: Plan, name: str, make_snapshot: Callable[[], WorkerSnapshot]) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.plan = plan
        self.node = name
        self.make_snapshot = make_snapshot
        self._stopping = threading.Event()
        self._changed = threading.Event()
        self.leaving = False
        self.intents = OperatorIntents()  # replaced as a whole
        self.beaten_at = self.answering_since = time.monotonic()
        self._rate = _Rate()

    def register_worker(self) -> None:
        row = Worker.objects.create(
            id=self.plan.worker,
            name=self.node,
            pid=os.getpid(),
            devices=list(self.plan.devices),
            replicas_total=self.plan.replicas,
            started_at=Now(),
            heartbeat_at=Now(),
        )
        timeline_marks.mark_worker_start(self.node)
        for name, devices in workers.find_gpu_conflicts(row).items():
            logger.warning(
                "%s computes on %s too, and neither leaves memory for the other: give them --devices of their own,"
                " or one worker more replicas (-c)",
                name,
                ", ".join(devices),
            )
        self._read_intents()

    def run(self) -> None:
        backoff = Backoff(first_s=0.2, longest_s=settings.WORKER_HEARTBEAT_S)
        while not self._stopping.is_set():
            if beaten := self.try_to_beat():
                backoff.reset()
            self._changed.wait(settings.WORKER_HEARTBEAT_S if beaten else backoff.take_next_pause_s())
            self._changed.clear()

    @property
    def database_up_s(self) -> float:
        """The seconds for which the database has answered each heartbeat in time, as far as this worker can tell."""
        now = time.monotonic()
        return now - self.answering_since if now - self.beaten_at < LATE_S else 0.0

    def note_stop(self) -> None:
        """Have the next heartbeat record that this worker stops. Runs in a signal handler, which may do no more."""
        self.leaving = True

    def try_to_beat(self) -> bool:
        if not run_chore(self._write_heartbeat, self.node):
            return False
        now = time.monotonic()
        if now - self.beaten_at >= LATE_S:
            self.answering_since = now
        self.beaten_at = now
        return True

    def write_row_soon(self) -> None:
        """Have the row written at once, since the served models differ from it."""
        self._changed.set()

    def stop(self, *, of_an_error: bool = False) -> None:
        """Stop the heartbeat, and mark the worker as stopped.

        It is marked as gone if an error ended it (`of_an_error`) before it was asked to stop. A job that ended its
        worker may end the next one, so the loss of a worker counts against its jobs. Jobs of a worker that was stopped
        run again, however often that happens.
        """
        self._stopping.set()
        self._changed.set()
        if self.is_alive():
            self.join(LAST_S)
        if of_an_error and not self.leaving:
            state, mark = WorkerState.GONE, timeline_marks.MarkKind.GONE
        else:
            state, mark = WorkerState.STOPPED, timeline_marks.MarkKind.STOPPED
        try:
            Worker.objects.filter(pk=self.plan.worker).update(state=state, heartbeat_at=Now())
            timeline_marks.add_mark(mark, self.node)
        except (DatabaseError, InterfaceError) as error:
            logger.warning("worker=%s leaves without a word, the database is away: %s", self.plan.worker, error)

    def _write_heartbeat(self) -> None:
        row = Worker.objects.filter(pk=self.plan.worker).exclude(state=WorkerState.STOPPED)
        if not row.update(heartbeat_at=Now(), **self._make_columns()) and not (self.leaving or self._stopping.is_set()):
            logger.warning("worker=%s its row is gone, as after a restore: it registers again", self.plan.worker)
            self.register_worker()
            self.write_row_soon()
        self._read_intents()
        clock.measure_offset(connection)

    def _read_intents(self) -> None:
        self.intents = OperatorIntents(
            is_drained=pauses_and_drains.is_drained(self.plan.worker), paused=pauses_and_drains.list_paused_models()
        )

    def _make_columns(self) -> dict[str, object]:
        snapshot = self.make_snapshot()
        columns = {each.name: getattr(snapshot, each.name) for each in dataclasses.fields(snapshot)}
        columns["jobs_per_s"] = self._rate.measure_rate(snapshot.finished)
        del columns["looped_at"]
        return columns | ({"state": WorkerState.STOPPING, "model_names": []} if self.leaving else {})


class _Rate:
    """Jobs a second over about the last ten seconds."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int]] = [(time.monotonic(), 0)]

    def measure_rate(self, finished: int) -> float:
        now = time.monotonic()
        self._samples = [sample for sample in self._samples if now - sample[0] <= 10.0] or self._samples[-1:]
        self._samples.append((now, finished))
        (_, before), elapsed = self._samples[0], now - self._samples[0][0]
        return (finished - before) / elapsed if elapsed > 0.5 else 0.0
