"""The controller of which lazy models a worker has in memory: from their first job until they are idle, by turns.

It runs in the event loop. It passes the demand that `DemandPoller` has found to the policy
(`inference.residency_policy`), which decides, and sets the models that are to be in no memory now. The replicas follow
that as they follow the models file.
"""

import logging
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from django.conf import settings

from inference.catalog.specs import Catalog, ModelSpec
from inference.engines.artifacts.memory import CPU
from inference.residency_policy.change_choice import Model
from inference.residency_policy.state import MIB, ResidencyState
from inference.worker.replicas.registry import ReplicaRegistry
from inference.worker.replicas.replica import ReplicaState
from inference.worker.scheduling.backlog import Backlog
from inference.worker.scheduling.demand_poller import DemandPoller

logger = logging.getLogger(__name__)

CPU_SHARE, GPU_SHARE = 0.5, 0.8  # share of a device's memory for models; the rest is for computations and others


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyStatus:
    """The state of the lazy models, for the worker's row."""

    able: frozenset[str] = frozenset()  # models that are served: in memory, or loaded as soon as a job comes
    why_not: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, Model] = field(default_factory=dict)  # those whose size is known, as far as it can be


class ResidencyController:
    def __init__(self, replicas: ReplicaRegistry) -> None:
        self.replicas = replicas
        self.residency = ResidencyState()
        self.demand = DemandPoller(replicas.plan, self.residency)
        self.specs: dict[str, ModelSpec] = {}  # entries whose size is known, as far as it can be
        self.report = LazyStatus()
        self._unload_unneeded_models()

    def update_residency(self, backlog: Backlog) -> None:
        """Take one step of loading and unloading. Runs twice a second."""
        served = self.replicas.served_models | self.report.able
        self._follow_catalog()
        if not self.replicas.have_all_reported:
            return
        now_s = time.monotonic()
        self.residency.set_memory_limit(self._compute_room())
        self._note_change_end(now_s)
        self._update_demand(backlog, now_s)
        if change := self.residency.begin_next_change(now_s):
            unload, load = ", ".join(change.unload) or "none", change.load or "none"
            logger.info("lazy models to be unloaded: %s; to be loaded: %s", unload, load)
        self._unload_unneeded_models()
        self.report = self._make_status(now_s, served)

    @property
    def _catalog(self) -> Catalog:
        return {name: spec for name, spec in self.replicas.catalog.items() if spec.is_lazy}

    def _follow_catalog(self) -> None:
        """Follow the lazy entries of the catalog.

        An entry that would be loaded in another way counts as another model, which is not in memory.
        """
        lazy = self._catalog
        self.demand.set_models(lazy, held_back=self.replicas.paused_or_drained_models)
        for name, spec in list(self.specs.items()):
            if name not in lazy or lazy[name].load_digest != spec.load_digest:
                del self.specs[name]
                self.residency.forget_model(name)
        for name, spec in lazy.items():
            if spec.load_digest in self.demand.estimates and self.specs.get(name) is not spec:
                self.specs[name] = spec
                estimate = self.demand.estimates[spec.load_digest]
                self.residency.register_model(name, idle_unload_s=spec.idle_unload_s, memory=estimate)

    def _compute_room(self) -> int:
        """Return the bytes for lazy models in each replica: the least that the other models leave in one of them."""
        plan, lazy = self.replicas.plan, self._catalog.keys()
        others = [spec for spec in self.replicas.goal.values() if spec.name not in lazy]
        rooms = [
            (settings.REPLICA_MEMORY_MB * MIB or _compute_share(replica) // plan.most_replicas_per_device)
            - _sum_memory(replica, others)
            for replica in self.replicas.replicas
            if replica.is_up
        ]
        return max(0, min(rooms, default=self.residency.room))

    def _note_change_end(self, now_s: float) -> None:
        """Note models that the replicas have lost, and whether the begun change is made or has failed."""
        residency, loading = self.residency, self.residency.loading_model
        for name in residency.models_in_memory - self.replicas.served_models:
            why = self.replicas.find_load_failure(self.specs[name]) or "its process ended, and has not loaded it again."
            residency.record_failed_load(name, now_s, why)
        if residency.change and self._is_change_made(loading):
            residency.finish_change(now_s, memory=self._find_memory(loading))
        elif loading in self.specs and (why := self.replicas.find_load_failure(self.specs[loading])):
            residency.record_failed_load(loading, now_s, why)

    def _is_change_made(self, loading: str | None) -> bool:
        """Return True if the begun change is made.

        The model to be loaded can be run; or, if none is loaded, no replica has the unloaded ones any more. Unloading
        goes first.
        """
        if loading in self.specs:
            return loading in self.replicas.runnable
        return all(replica.ready <= self.replicas.goal.keys() for replica in self.replicas.replicas)

    def _find_memory(self, loaded: str | None) -> int | None:
        if loaded not in self.specs:
            return None
        return max(replica.memory.get(self.specs[loaded].digest, 0) for replica in self.replicas.replicas)

    def _update_demand(self, backlog: Backlog, now_s: float) -> None:
        held = list(backlog.held.values())
        waiting, ours = self.demand.waiting, self.demand.ours
        self.residency.update_demand(
            {name: waiting[name] for name in ours if name in waiting},
            working={job.model for job in held} | waiting.keys(),
            kept={job.model for job in held if job.takes_over},
            now_s=now_s,
        )

    def _unload_unneeded_models(self) -> None:
        residency = self.residency
        absent = frozenset(self._catalog.keys() - residency.models_in_memory - {residency.loading_model})
        self.demand.set_absent_models(absent)
        if absent != self.replicas.unneeded_models:
            self.replicas.set_unneeded_models(absent)

    def _make_status(self, now_s: float, served: frozenset[str]) -> LazyStatus:
        """Return the status. `served` are the models that were served until now.

        A served model is still served while the size of its new entry is being found.
        """
        why_not = self.residency.find_load_obstacles()
        blocked = {name for name in why_not if not self.residency.can_load(name, now_s)}
        unknown = self._catalog.keys() - self.specs.keys()
        able = frozenset(self.specs.keys() - blocked | unknown & served)
        return LazyStatus(able=able, why_not=why_not, models=dict(self.residency.models))


def _compute_share(replica: ReplicaState) -> int:
    """Return the bytes of the replica's device for models.

    A device that does not report its memory has no limit here: loading will show what fits.
    """
    return int(replica.total * (CPU_SHARE if replica.device == CPU else GPU_SHARE)) or sys.maxsize


def _sum_memory(replica: ReplicaState, specs: Iterable[ModelSpec]) -> int:
    """Return the bytes that these models take in the replica. Entries that share what is loaded count once."""
    memory = replica.memory
    return sum({spec.load_digest: memory[spec.digest] for spec in specs if spec.digest in memory}.values())
