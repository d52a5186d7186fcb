"""The parts of a worker's row about its replicas and models. The heartbeat's thread calls these functions, too."""

from collections.abc import Mapping

from inference.catalog import lookup
from inference.catalog.specs import ModelSpec
from inference.fields.worker_documents import (
    CatalogSnapshot,
    EntrySnapshot,
    ModelState,
    ReplicaModel,
    ReplicaSnapshot,
)
from inference.worker.calls import READY
from inference.worker.replicas.registry import ReplicaRegistry
from inference.worker.replicas.replica import ReplicaState
from inference.worker.scheduling.residency_controller import LazyStatus

OLD_GOES_ON = "its new entry is not taken over, the one before goes on: "


def make_replica_values(replicas: ReplicaRegistry, refused: Mapping[str, str]) -> dict[str, ReplicaSnapshot]:
    """Return the replicas by their index, as the worker's row has them.

    `refused` is, by model, the reason why this worker cannot run it though replicas may have it.
    """
    specs = [spec for spec in replicas.specs.values() if spec.name not in replicas.unneeded_models]
    unable = {name: ReplicaModel(ModelState.FAILED, why) for name, why in refused.items()}
    return {
        str(index): ReplicaSnapshot(
            pid=replica.pid,
            device=replica.device,
            chosen=replicas.plan.why,
            ended=replica.recent_end_count,
            withdrawn_s=round(replicas.device_health.compute_withdrawn_s(replica.device)),
            models={**{spec.name: _model(replica, spec) for spec in specs}, **unable},
            notes=dict(replica.notes),
            facts=dict(replica.facts),
            memory={spec.name: taken for spec in specs if (taken := replica.memory.get(spec.digest))},
        )
        for index, replica in enumerate(replicas.replicas)
    }


def _model(replica: ReplicaState, spec: ModelSpec) -> ReplicaModel:
    """Return the state of a model in the replica's present process, whatever the process before had."""
    why = replica.models.get(spec.digest, READY)
    if why != READY:
        return ReplicaModel(ModelState.FAILED, why)
    return ReplicaModel(ModelState.READY if spec.digest in replica.ready else ModelState.LOADING)


def find_load_failures(replicas: ReplicaRegistry) -> dict[str, str]:
    """Return, by model, the reason why a replica could not load it."""
    return {
        spec.name: why if _is_current(replicas, spec) else OLD_GOES_ON + why
        for spec in replicas.goal.values()
        if (why := replicas.find_load_failure(spec))
    }


def make_catalog_value(replicas: ReplicaRegistry, lazy: LazyStatus) -> CatalogSnapshot:
    """Return the models file as this process has it, with the entries that are run or still run.

    A model has two entries while the next one is being loaded.
    """
    digest = replicas.file_digest  # it is read before the entries, which are then never older
    found = {spec.digest: spec for spec in (*replicas.specs.values(), *replicas.catalog.values())}
    models = [_make_entry(replicas, spec, lazy) for spec in found.values()]
    return CatalogSnapshot(digest=digest, problem=lookup.find_file_problem(), models=models)


def _make_entry(replicas: ReplicaRegistry, spec: ModelSpec, lazy: LazyStatus) -> EntrySnapshot:
    why = replicas.find_load_failure(spec) or lazy.why_not.get(spec.name, "")
    lazy_model = lazy.models.get(spec.name)
    return EntrySnapshot(
        name=spec.name,
        model=spec.model or spec.engine,
        revision=spec.revision,
        digest=spec.digest,
        state=_find_state(replicas, spec, lazy, why),
        why=why,
        memory=lazy_model.memory if lazy_model else _find_memory(replicas, spec),
        held_back=spec.name in replicas.paused_or_drained_models,
        failures=None if spec.name in replicas.unneeded_models else replicas.failures[spec.digest],
        load_s=round(lazy_model.load_s, 1) if lazy_model else None,
    )


def _find_state(replicas: ReplicaRegistry, spec: ModelSpec, lazy: LazyStatus, why: str) -> ModelState:
    """Return the state of an entry. `why` is why it could not be loaded."""
    if spec.name in replicas.unneeded_models:
        if spec.name not in lazy.models:
            return ModelState.LOADING
        return ModelState.NOT_LOADED if spec.name in lazy.able else ModelState.FAILED
    if spec.name in replicas.removed_models:
        return ModelState.DRAINING
    if spec.name in replicas.runnable and _is_current(replicas, spec):
        return ModelState.READY
    return ModelState.FAILED if why else ModelState.LOADING


def _find_memory(replicas: ReplicaRegistry, spec: ModelSpec) -> int | None:
    """Return the measured bytes of a model, or None if no replica has it."""
    return max((replica.memory.get(spec.digest, 0) for replica in replicas.replicas), default=0) or None


def _is_current(replicas: ReplicaRegistry, spec: ModelSpec) -> bool:
    """Return True if jobs run by this entry, and not by the one before it."""
    current = replicas.specs.get(spec.name)
    return current is not None and current.digest == spec.digest
