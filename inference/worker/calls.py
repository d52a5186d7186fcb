"""What crosses the pipe between the worker's main process and a pool child: plain values, no inputs and no outputs."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

READY = "ready"  # the state of a model that a replica has loaded
ENDED_BY_IT = "a process ended while it loaded this model."
PAST_ITS_LIMIT = signal.SIGALRM  # what a child dies of whose engine ran past the model's limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a child has loaded."""

    pid: int
    models: Mapping[str, str]  # by name: READY, or why not
    notes: Mapping[str, str] = field(default_factory=dict)  # by name: how it is run, if in another way than most
    tracebacks: Mapping[str, str] = field(default_factory=dict)  # of those whose engine's own code failed


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCall:
    """Run these jobs of one model together."""

    batch: UUID
    model: str
    job_ids: tuple[UUID, ...]
    time_limit_s: float  # of the engine
    alone: bool = False  # nothing runs beside it
    takes_over: tuple[UUID, ...] = ()  # batches that are known to be over, whose rows may be claimed
    verdict: str = ""  # do not run: fail the jobs with this error code


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """What was recorded, and what it cost."""

    errors: dict[UUID, str]  # code by job, of those that were claimed; "" for a success
    engine_s: float = 0.0
    overhead_s: float = 0.0  # of the replica, besides the engine
    size: int = 0  # rows of the engine call
    length: float = 0.0  # tokens of each: of the longest where items are padded, else of all on average
    cut_at: int | None = None  # tokens of a text, that the model reads
    padded: bool = True
    calls: int = 0  # engine calls; more than one when a culprit was isolated
    oom_shape: tuple[int, float] | None = None  # (size, length) that did not fit on the device
