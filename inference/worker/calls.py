"""What crosses the pipe between the worker's main process and a pool child: plain values, no inputs and no outputs."""

import ctypes
import enum
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from uuid import UUID

from inference.batching.room import Room
from inference.catalog.specs import ModelSpec
from inference.fields.uuids import packed, unpacked

NO_JOB = bytes(16)
Order = tuple[ModelSpec, ...]  # what a child is to have loaded, and nothing else

READY = "ready"  # the state of a model that a replica has loaded
ENDED_BY_IT = "a process ended while it loaded this model."
TOO_LONG = "it was not loaded within {limit_s:g} s, and its process was ended: set LOAD_LIMIT_S higher."
NEVER_ENDS = "its process is stuck in the driver of its device and cannot be ended: the host needs a restart."
PAST_ITS_LIMIT = signal.SIGALRM  # what a child dies of whose engine ran past the model's limit
IN_HAND = 3  # calls of a child that works ahead: one is claimed, one computed and one recorded


class RemoteError(Exception):
    """By a call of a child, in words: what it was the main process may not know, or not be able to make.

    `raised` and `trace` are for operators, as those of an `InferenceError`."""

    def __init__(self, said: str, raised: str = "", trace: str = "") -> None:
        super().__init__(said)
        self.raised, self.trace = raised, trace


class ChildCommand(enum.IntEnum):
    """What the main process wants of a child."""

    CONTINUE = 0
    YIELD = 1  # after this step: others wait for their turn, or to join
    DRAIN = 2  # the worker leaves, there will be no other call


class SharedState(ctypes.Structure):
    """Memory that both read, without a lock: the child may be killed at any time."""

    _fields_ = [
        ("loading", ctypes.c_int),  # the how many-th of its order the child loads, or 0: as the child says
        ("command", ctypes.c_int),  # a `ChildCommand`, which the main process writes
        ("called_back", ctypes.c_longlong * IN_HAND),  # numbers of those that begin no other engine call: likewise
        ("computing", ctypes.c_longlong),  # the number of the call whose engine runs, or ran last: as the child says
        ("reading", ctypes.c_longlong),  # the number of the call whose inputs are read beside that, or 0: likewise
        ("job", ctypes.c_ubyte * len(NO_JOB)),  # that an open batch's engine is busy with alone, or `NO_JOB`: likewise
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What a child has loaded."""

    pid: int
    models: Mapping[str, str]  # by digest of each that it was to have: READY, or why not
    notes: Mapping[str, str] = field(default_factory=dict)  # by name: how it is run, if in another way than most
    tracebacks: Mapping[str, str] = field(default_factory=dict)  # of those whose engine's own code failed
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes by digest, of those that it has
    load_s: Mapping[str, float] = field(default_factory=dict)  # by digest, of those that it has
    steps: frozenset[str] = frozenset()  # digests of those that generate step by step
    total: int = 0  # bytes that its device has for all who share it


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCall:
    """Run these jobs of one model together, or have them join those of the batch that are run already."""

    batch: UUID
    number: int = 0  # of the call, in this worker
    model: str
    digest: str  # of the model's entry that they run by
    job_ids: tuple[UUID, ...]
    shares: tuple[int, ...] = ()  # jobs of each engine call, one after the other, where there are several
    time_limit_s: float  # of the engine
    ahead_s: float = 0.0  # the same of all that the child has to run first
    is_last: bool = False  # no newer entry of the model will be run: it could not be loaded
    again: bool = False  # it is looked into: nothing of it is done ahead but its claim
    alone: bool = False  # nothing runs beside it
    takes_over: tuple[UUID, ...] = ()  # batches that are known to be over, whose rows may be claimed
    goes_on: bool = False  # with a batch that is open in this child
    waiting: tuple[UUID, ...] = ()  # batches that are open in this child, and wait for their turn
    verdict: str = ""  # do not run: fail the jobs with this error code
    raised: str = ""  # by the call that this verdict is of, for operators
    trace: str = ""  # where that was raised

    def __reduce__(self) -> Any:
        return _call, (packed(self.job_ids), *(getattr(self, name) for name in _OF_CALL))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """What was recorded, and what it cost."""

    errors: dict[UUID, str]  # code by job, of those that were claimed; "" for a success
    engine_s: float = 0.0
    overhead_s: float = 0.0  # of the replica, besides the engine and what is read ahead
    read_s: float = 0.0  # ahead, beside another call
    jobs: int = 0  # of the engine call
    size: int = 0  # its rows
    length: float = 0.0  # tokens of each: of the longest where items are padded, else of all on average
    cut_at: int | None = None  # tokens of a text, that the model reads; of a prompt and its answer, where it generates
    padded: bool = True
    calls: int = 0  # engine calls; more than one when a culprit was isolated
    oom_shape: tuple[int, float] | None = None  # (size, length) that did not fit on the device
    left: frozenset[UUID] = frozenset()  # jobs that go on with the next call of the batch
    put_off: frozenset[UUID] = frozenset()  # jobs that were claimed, and cannot join yet
    unbegun: frozenset[UUID] = frozenset()  # jobs that others went before: their claim was taken back
    each: tuple["BatchReport", ...] = ()  # engine call, where there were several: these name no jobs
    room: Room = field(default_factory=Room)  # for those that join next
    capacity: int = 0  # tokens of cache in all; 0 of a model that does not generate step by step
    tokens: int = 0  # generated
    firsts_s: tuple[float, ...] = ()  # of the jobs whose first token came: since they were made
    answers: tuple[int, ...] = ()  # tokens of each job that ended

    def __reduce__(self) -> Any:
        errors = self.errors
        return _report, (packed(errors), [*errors.values()], *(getattr(self, name) for name in _OF_REPORT))


# What a pipe takes for them: ids are most of it.

_OF_CALL = [field.name for field in fields(BatchCall) if field.name != "job_ids"]
_OF_REPORT = [field.name for field in fields(BatchReport) if field.name != "errors"]


def _call(job_ids: bytes, *others: Any) -> BatchCall:
    return BatchCall(job_ids=tuple(unpacked(job_ids)), **dict(zip(_OF_CALL, others, strict=True)))


def _report(job_ids: bytes, codes: list[str], *others: Any) -> BatchReport:
    errors = dict(zip(unpacked(job_ids), codes, strict=True))
    return BatchReport(errors=errors, **dict(zip(_OF_REPORT, others, strict=True)))
