"""The state of a worker's lazy models: which are in memory, which wait, and how long loading took the last time."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from inference.residency_policy.change_choice import Change, Model, choose_change

MIB = 2**20
BYTES_PER_S = 200 * MIB  # speed of reading that is assumed until a load was measured
FIRST_LOAD_S = 1.0  # seconds that a load is assumed to need besides reading
UNKNOWN = 1024 * MIB  # bytes that a model of unknown size is assumed to need; all the room where that is less
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 600.0  # after a load that failed; each is twice as long as the one before


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The jobs of a model that is not in memory."""

    since_s: float  # time at which the first of them was made, by the caller's clock
    priority: int


class ResidencyState:
    """The lazy models of a worker, of which one change at a time is made.

    It is not thread-safe: the worker's event loop owns it. The event loop reports by `finish_change` or
    `record_failed_load` that a change is over.
    """

    def __init__(self) -> None:
        self.room = 0  # bytes for lazy models
        self.models: dict[str, Model] = {}
        self.change: Change | None = None  # the change that is being made
        self.failures: dict[str, str] = {}  # by model: the reason why its last load failed
        self._guessed: set[str] = set()
        self._pauses: dict[str, float] = {}
        self._left_at_s: dict[str, float] = {}
        self._began_s = 0.0

    def set_memory_limit(self, room: int) -> None:
        """Set the bytes for lazy models: those that the other models leave."""
        self.room = room

    def register_model(self, name: str, *, idle_unload_s: float, memory: int | None) -> None:
        """Add a model. `memory` is an estimate in bytes, or None where nothing is known.

        A model that is here already keeps its state, and only its `idle_unload_s` changes.
        """
        if name in self.models:
            self._update_model(name, idle_unload_s=idle_unload_s)
            return
        if memory is None:
            self._guessed.add(name)
        load_s = FIRST_LOAD_S + (memory or 0) / BYTES_PER_S
        self.models[name] = Model(name=name, memory=memory or UNKNOWN, load_s=load_s, idle_unload_s=idle_unload_s)

    def forget_model(self, name: str) -> None:
        """Forget a model which the catalog has no longer, or in whose place it has another one of its name."""
        del self.models[name]
        self._guessed.discard(name)
        for known in (self.failures, self._pauses, self._left_at_s):
            known.pop(name, None)

    @property
    def models_in_memory(self) -> frozenset[str]:
        """The names of the models that are in memory and served."""
        return frozenset(name for name, model in self.models.items() if model.loaded_at_s is not None)

    @property
    def loading_model(self) -> str | None:
        return self.change.load if self.change else None

    def update_demand(
        self, waiting: Mapping[str, Waiting], *, working: Collection[str], kept: Collection[str], now_s: float
    ) -> None:
        """Update the models by the jobs that there are now.

        `waiting` has the jobs of models that are not in memory. `working` has the models with jobs. `kept` has the
        models with begun jobs that must end here.
        """
        for name, model in self.models.items():
            if model.loaded_at_s is not None:
                worked_at_s = now_s if name in working else model.worked_at_s
                is_working, is_kept = name in working, name in kept
                self._update_model(name, is_working=is_working, is_kept=is_kept, worked_at_s=worked_at_s)
            elif found := waiting.get(name):
                since_s = max(found.since_s, self._left_at_s.get(name, -math.inf))
                known_s = model.waits_since_s
                self._update_model(name, waits_since_s=since_s if known_s is None else known_s, priority=found.priority)
            else:
                self._update_model(name, waits_since_s=None)

    def begin_next_change(self, now_s: float) -> Change | None:
        """Return the change to make now, which counts as begun; None if there is none, or one is being made."""
        if self.change:
            return None
        change = choose_change(map(self._bound_guess, self.models.values()), room=self.room, now_s=now_s)
        if not change.unload and not change.load:
            return None
        self.change, self._began_s = change, now_s
        for name in change.unload:
            self.record_unload(name)
            self._left_at_s[name] = now_s
        return change

    def finish_change(self, now_s: float, *, memory: int | None = None) -> None:
        """Record that the change was made. `memory` is the measured bytes of the loaded model, where there are any."""
        change, self.change = self.change, None
        if change and (name := change.load) in self.models and name:
            load_s = now_s - self._began_s
            self._update_model(name, loaded_at_s=now_s, worked_at_s=now_s, load_s=load_s, waits_since_s=None)
            self.failures.pop(name, None)
            self._pauses.pop(name, None)
            if memory:
                self._guessed.discard(name)
                self._update_model(name, memory=memory)

    def record_failed_load(self, name: str, now_s: float, why: str) -> None:
        """Record that a model could not be loaded, now or when its process had to start again.

        That was its turn: it waits anew, and is not loaded before a pause is over.
        """
        if self.loading_model == name:
            self.change = None
        pause_s = self._pauses[name] = min(LONGEST_PAUSE_S, 2 * self._pauses.get(name, FIRST_PAUSE_S / 2))
        self.failures[name] = why
        self._left_at_s[name] = now_s
        self.record_unload(name)
        self._update_model(name, waits_since_s=None, not_before_s=now_s + pause_s)

    def record_unload(self, name: str) -> None:
        """Record that a model is no longer in memory."""
        self._update_model(name, loaded_at_s=None, is_working=False, is_kept=False)

    def estimate_load_s(self, name: str) -> float:
        """Return the seconds that loading a model takes, as far as is known."""
        model = self.models.get(name)
        return model.load_s if model else FIRST_LOAD_S

    def can_load(self, name: str, now_s: float) -> bool:
        model = self._bound_guess(self.models[name])
        return model.memory <= self.room and model.not_before_s <= now_s

    def find_load_obstacles(self) -> dict[str, str]:
        """Return the reasons by model for those that cannot be loaded."""
        bounded = map(self._bound_guess, self.models.values())
        return self.failures | {
            model.name: self._describe_too_large(model) for model in bounded if model.memory > self.room
        }

    def _describe_too_large(self, model: Model) -> str:
        return (
            f"it needs {math.ceil(model.memory / MIB)} MiB, and lazy models have {self.room // MIB} MiB in a replica:"
            " set REPLICA_MEMORY_MB higher, or load fewer models eagerly."
        )

    def _bound_guess(self, model: Model) -> Model:
        """Return the model with no more memory than there is room, if its memory is only guessed.

        A guess keeps no model from its first load.
        """
        return replace(model, memory=min(model.memory, self.room)) if model.name in self._guessed else model

    def _update_model(self, name: str, **values: object) -> None:
        self.models[name] = replace(self.models[name], **values)  # type: ignore[arg-type]  # by names of fields
