"""The documents in the columns of a worker's row: what its heartbeat writes, and what every process reads.

During an upgrade workers and their readers are of two versions. What a later version writes beside these fields is left
out, and what an earlier one does not write has its default.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

LOADING = "its worker is loading it."


class ModelState(enum.StrEnum):
    """The state of a model on a worker, or in one of its replicas. A state of a later version is read as `LOADING`."""

    READY = "ready"
    LOADING = "loading"
    FAILED = "failed"
    DRAINING = "draining"
    NOT_LOADED = "not loaded"

    @classmethod
    def _missing_(cls, value: object) -> ModelState:
        return cls.LOADING


@dataclass(frozen=True)
class Document:
    """A value that is stored as JSON: as an object with the fields, unless it says otherwise."""

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        """Make a document of its JSON value."""
        known = cls.__annotations__
        return cls(**{key: each for key, each in value.items() if key in known})

    def write(self) -> Any:
        """Return the JSON value, in which other documents may stand."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}


D = TypeVar("D", bound=Document)


@dataclass(frozen=True)
class ReplicaModel(Document):
    """A model in a replica. As JSON it is a text: "ready", `LOADING`, or why the replica cannot run it."""

    state: ModelState
    why: str = ""  # the reason of a failure

    @classmethod
    def parse(cls, text: str) -> Self:
        if text == LOADING:
            return cls(ModelState.LOADING)
        return cls(ModelState.READY) if text == ModelState.READY else cls(ModelState.FAILED, text)

    def write(self) -> str:
        return LOADING if self.state is ModelState.LOADING else self.why or self.state


@dataclass(frozen=True, kw_only=True)
class ReplicaSnapshot(Document):
    """A replica of a worker."""

    pid: int | None = None  # None while it has no process
    device: str = ""
    chosen: str = ""  # why the worker computes on these devices
    ended: int = 0  # ends of its processes within the last minutes
    withdrawn_s: int = 0  # seconds for which its device gets no work, because calls failed there
    models: Mapping[str, ReplicaModel] = field(default_factory=dict)  # by name
    notes: Mapping[str, str] = field(default_factory=dict)  # by model: how it is run, if in another way than most
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by model: what clients may want to know
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes by model

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        models = {name: ReplicaModel.parse(text) for name, text in value.get("models", {}).items()}
        return super().read({**value, "models": models})


@dataclass(frozen=True, kw_only=True)
class EntrySnapshot(Document):
    """An entry of the models file, as a worker has it."""

    name: str = ""
    state: ModelState = ModelState.LOADING
    model: str = ""  # its weights; without any, its engine
    revision: str = ""
    digest: str = ""
    why: str = ""  # the reason of a failure
    memory: int | None = None  # bytes of one replica: measured, or for a lazy model estimated at first
    held_back: bool = False  # operators want no job of it begun
    failures: int | None = None  # loads that were tried in vain; None for a lazy model that is not in memory
    load_s: float | None = None  # seconds that a load takes, of a lazy model

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        return super().read({**value, "state": ModelState(value.get("state", ""))})

    def write(self) -> dict[str, Any]:
        return {key: value for key, value in super().write().items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class CatalogSnapshot(Document):
    """The models file as a worker has it, with the entries that are run or still run."""

    digest: str = ""
    problem: str = ""  # why the worker refuses the file as it is now
    models: Sequence[EntrySnapshot] = ()  # two of a model while its next entry is loaded

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        return super().read({**value, "models": tuple(map(EntrySnapshot.read, value.get("models", ())))})


@dataclass(frozen=True, kw_only=True)
class FirstTokenTimes(Document):
    """Seconds from the creation of jobs to their first tokens; None before any."""

    p50: float | None = None
    p95: float | None = None


@dataclass(frozen=True, kw_only=True)
class GenerationSnapshot(Document):
    """The progress of a model that generates step by step on a worker."""

    rows: int = 0  # that are being answered
    room: int = 0  # free tokens of KV cache in all replicas
    tokens: int = 0  # since the worker's start
    tokens_per_s: float = 0.0
    first_token_s: FirstTokenTimes = FirstTokenTimes()

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        return super().read({**value, "first_token_s": FirstTokenTimes.read(value.get("first_token_s", {}))})


@dataclass(frozen=True, kw_only=True)
class CostSnapshot(Document):
    """The cost of a model's calls that a worker has learnt, and the calls that it was learnt from."""

    weights: Sequence[float] = ()  # of the terms of the cost
    overhead_s: float = 0.0  # of a call, besides the engine
    job_s: float = 0.0  # of a job, besides the engine
    calls: int = 0
    seen: Sequence[tuple[int, float, float]] = ()  # items, tokens of an item and seconds of a call of each shape

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        return super().read({**value, "seen": tuple(map(tuple, value.get("seen", ())))})


def make_documents_reader(kind: type[D]) -> Callable[[Mapping[str, Any]], dict[str, D]]:
    """Return the function that reads a JSON object whose values are documents of this kind."""
    return lambda value: {key: kind.read(each) for key, each in value.items()}


def read_newest_creation_times(value: Mapping[str, Mapping[str, float]]) -> dict[str, dict[int, float]]:
    """Read, by model and priority, when the newest of the jobs that a worker has started was created."""
    return {model: {int(key): at for key, at in reached.items()} for model, reached in value.items()}
