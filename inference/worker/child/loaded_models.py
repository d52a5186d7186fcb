"""The models that a child process has loaded."""

import importlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from inference import errors
from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.artifacts import memory
from inference.engines.base import Engine
from inference.fields.json_field import escape_for_database
from inference.worker.calls import READY, Assignment, LoadReport, SharedState

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadedModels:
    """The models that one child process has loaded on its device."""

    worker: UUID
    device: str  # its name in this process
    host_device: str  # its name on the host
    sharing: int = 1  # replicas that share the device
    specs: dict[str, ModelSpec] = field(default_factory=dict)  # entries that can be run, by digest
    engines: dict[str, Engine] = field(default_factory=dict)  # by load_digest: several entries may share an engine
    memory: dict[str, int] = field(default_factory=dict)  # bytes that each engine takes, by load_digest
    load_s: dict[str, float] = field(default_factory=dict)  # seconds that each engine took to load, by load_digest
    shared: SharedState = field(default_factory=SharedState)

    def get_engine(self, spec: ModelSpec) -> Engine:
        return self.engines[spec.load_digest]

    def apply_assignment(
        self, assignment: Assignment, before_next_load: Callable[[LoadReport], None] | None = None
    ) -> LoadReport:
        """Unload the models that are not in the assignment, then load those that are new in it beside those that stay.

        A model that cannot be loaded leaves the others as they are. If the device is broken, none stays. After each
        loaded model that another one follows, `before_next_load` is called with the report so far.
        """
        importlib.invalidate_caches()
        memory.limit_memory_to_share(self.device, self.sharing)
        self._unload_models(assignment)
        failures: dict[str, errors.ModelUnavailable] = {}
        for place, spec in enumerate(assignment, 1):
            if why := self._load_model(place, spec):
                failures[spec.digest] = why
            elif before_next_load and place < len(assignment):
                before_next_load(self._make_report(assignment[:place], failures))
        if broken := loading.probe_device(self.device):
            self.specs.clear()
            self.engines.clear()
            failures = {spec.digest: broken for spec in assignment}
        return self._make_report(assignment, failures)

    def _make_report(self, tried: Assignment, failures: Mapping[str, errors.ModelUnavailable]) -> LoadReport:
        """Return the report on these models, with the failures by digest."""
        return LoadReport(
            pid=os.getpid(),
            models={spec.digest: _describe_load_result(failures.get(spec.digest)) for spec in tried},
            notes={spec.name: note for spec in self.specs.values() if (note := self.get_engine(spec).note)},
            facts={spec.name: facts for spec in self.specs.values() if (facts := self.get_engine(spec).facts)},
            tracebacks={
                digest: trace for digest, failure in failures.items() if (trace := loading.format_own_trace(failure))
            },
            memory={digest: self.memory[spec.load_digest] for digest, spec in self.specs.items()},
            load_s={digest: self.load_s[spec.load_digest] for digest, spec in self.specs.items()},
            total=memory.read_total_memory(self.device),
            steps=frozenset(digest for digest, spec in self.specs.items() if self.get_engine(spec).stepper is not None),
        )

    def _unload_models(self, assignment: Assignment) -> None:
        stay = {spec.digest for spec in assignment}
        self.specs = {digest: spec for digest, spec in self.specs.items() if digest in stay}
        used = {spec.load_digest for spec in self.specs.values()}
        if unused := self.engines.keys() - used:
            for load_digest in unused:
                logger.info("model=%s unloaded from %s", self.engines.pop(load_digest).spec.name, self.host_device)
            memory.free_unused_memory()

    def _load_model(self, place: int, spec: ModelSpec) -> errors.ModelUnavailable | None:
        """Load a model if its engine is not here yet, and return why that failed, or None."""
        if spec.load_digest not in self.engines:
            self.shared.loading = place
            try:
                self._load_engine(spec)
            except errors.ModelUnavailable as failure:
                self.shared.loading = 0
                logger.debug("model=%s not loaded on %s", spec.name, self.host_device, exc_info=True)
                return failure
            self.shared.loading = 0  # it stays set if loading ends this process, as `sys.exit` in its module does
        self.specs[spec.digest] = spec
        return None

    def _load_engine(self, spec: ModelSpec) -> None:
        started = time.monotonic()
        with memory.measure_memory_taken(spec, self.device) as taken:
            self.engines[spec.load_digest] = engine = loading.load_engine(spec, self.device)
        self.memory[spec.load_digest] = taken.bytes
        self.load_s[spec.load_digest] = took_s = time.monotonic() - started
        mib = taken.bytes / memory.MIB
        logger.info("model=%s loaded on %s in %.1f s, %.0f MiB", spec.name, self.host_device, took_s, mib)
        if engine.note:
            logger.warning("model=%s %s", spec.name, engine.note)


def _describe_load_result(failure: errors.ModelUnavailable | None) -> str:
    return escape_for_database(failure.message) if failure else READY
