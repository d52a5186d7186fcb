"""The thread that finds the demand for a worker's lazy models.

Beside the event loop, it finds their waiting jobs, the other workers that have them, and their sizes.
"""

import threading
import time
from collections.abc import Mapping
from uuid import UUID

from inference import clock
from inference.catalog.specs import Catalog
from inference.connection_retries import Backoff
from inference.engines.artifacts import memory
from inference.fields.worker_documents import ModelState
from inference.residency_policy.state import ResidencyState, Waiting
from inference.residency_policy.worker_choice import should_load
from inference.status import queue_position, workers
from inference.worker.chore_runner import run_chore
from inference.worker.replicas.devices import Plan

LOOK_S, LONGEST_PAUSE_S = 0.5, 10.0  # pauses between two looks; the second while the database is away
INSIDE = (ModelState.READY, ModelState.LOADING)  # states of a model that is in memory, or soon will be


class DemandPoller(threading.Thread):
    """The thread that looks for the demand for lazy models.

    The event loop calls the methods that follow its models, and writes `residency`. The thread replaces its results as
    a whole.
    """

    def __init__(self, plan: Plan, residency: ResidencyState) -> None:
        super().__init__(name="lazy-demand", daemon=True)
        self.worker = plan.worker
        self.residency = residency
        self.models: Catalog = {}  # the lazy models
        self.absent: frozenset[str] = frozenset()  # lazy models that are not in memory
        self.held_back: frozenset[str] = frozenset()  # models of which operators want no job begun
        self.waiting: Mapping[str, Waiting] = {}
        self.ours: frozenset[str] = frozenset()  # models with waiting jobs that this worker is to load
        self.estimates: dict[str, int | None] = {}  # bytes, by load_digest
        self._seen_at: dict[str, float] = {}  # by model, monotonic: when its waiting jobs were first seen
        self._made_at: dict[UUID, float] = {}  # by first job, monotonic: its creation, from its age when first seen
        self._stopping = threading.Event()

    def run(self) -> None:
        backoff = Backoff(first_s=LOOK_S, longest_s=LONGEST_PAUSE_S)
        while not self._stopping.is_set():
            if looked := run_chore(self.poll_demand, str(self.worker)):
                backoff.reset()
            self._stopping.wait(LOOK_S if looked else backoff.take_next_pause_s())

    def set_models(self, models: Catalog, *, held_back: frozenset[str]) -> None:
        """Look for jobs of these models from now on, but of those that are held back."""
        self.models, self.held_back = models, held_back

    def set_absent_models(self, absent: frozenset[str]) -> None:
        """Look for jobs while one of these models, which are not in memory, might be loaded."""
        self.absent = absent

    def stop(self) -> None:
        self._stopping.set()

    def poll_demand(self) -> None:
        models, absent = self.models, self.absent
        for spec in models.values():
            if spec.load_digest not in self.estimates:
                self.estimates[spec.load_digest] = memory.estimate_weights_memory(spec)
        if not models or not absent:  # no job waits for a model to be loaded
            self.waiting, self.ours, self._seen_at, self._made_at = {}, frozenset(), {}, {}
            return
        found = {
            name: first
            for name, first in queue_position.find_first_queued(models).items()
            if name not in self.held_back
        }
        now = time.monotonic()
        self._seen_at = {name: self._seen_at.get(name, now) for name in found if name in absent}
        self._made_at = {
            job_id: self._made_at.get(job_id, now - _compute_age_s(job_id)) for _, job_id in found.values()
        }
        self.waiting = {
            name: Waiting(since_s=self._made_at[job_id], priority=priority)
            for name, (priority, job_id) in found.items()
        }
        self.ours = frozenset(self._choose_models(now)) if self._seen_at else frozenset()

    def _choose_models(self, now: float) -> list[str]:
        others = self._read_other_workers()
        return [
            name
            for name, seen_at in self._seen_at.items()
            if should_load(
                name,
                str(self.worker),
                {other: states[name] for other, states in others.items() if name in states},
                seen_s=now - seen_at,
                waited_s=now - self.waiting[name].since_s,
                load_s=self.residency.estimate_load_s(name),
            )
        ]

    def _read_other_workers(self) -> dict[str, dict[str, bool]]:
        """Return, by worker and model, whether the worker has the model in memory or loads it."""
        others = (
            workers.select_living_workers().filter(connected=True, state__in=workers.SERVING).exclude(pk=self.worker)
        )
        return {
            str(worker.pk): {entry.name: entry.state in INSIDE for entry in worker.catalog.models}
            for worker in others.only("catalog")
        }


def _compute_age_s(job_id: UUID) -> float:
    return max(0.0, clock.estimate_now_s() - queue_position.extract_creation_ms(job_id) / 1000)
