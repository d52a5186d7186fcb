"""The messages on the pipe between a worker's main process and its child processes.

They are plain values, without the inputs and outputs of jobs.
"""

import ctypes
import enum
import mmap
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from inference.batching.room import Room
from inference.catalog.specs import ModelSpec

NO_JOB = bytes(16)
LOAD_NEXT = (0,)  # the message to a child that starts, after which it loads its next model
Assignment = tuple[ModelSpec, ...]  # the models that a child process is to have loaded, and no others

READY = "ready"  # the state of a model that a replica has loaded
ENDED_BY_IT = "a process ended while it loaded this model."
TOO_LONG = "it was not loaded within {limit_s:g} s, and its process was ended: set LOAD_LIMIT_S higher."
NEVER_ENDS = "its process is stuck in the driver of its device and cannot be ended: the host needs a restart."
PAST_ITS_LIMIT = signal.SIGALRM  # ends a child process whose engine ran past the model's limit
IN_HAND = 3  # calls that a child process which works ahead holds: one is claimed, one computed, one recorded


class RemoteError(Exception):
    """An error that a call raised in a child process, in words.

    It stands for exceptions whose class the main process may not know, or may not be able to construct. `raised` and
    `trace` are for operators, as those of an `InferenceError`.
    """

    def __init__(self, said: str, raised: str = "", trace: str = "") -> None:
        super().__init__(said)
        self.raised, self.trace = raised, trace


class ProcessLost(Exception):
    """The child process that ran a call has ended."""

    def __init__(self, exit_code: int | None) -> None:
        """`exit_code` is minus the number of the signal that ended it, as in `multiprocessing`; None: unknown."""
        super().__init__(f"the process that ran it ended: {describe_exit(exit_code)}")
        self.exit_code = exit_code

    @property
    def is_past_limit(self) -> bool:
        """True if the engine ran past the model's time limit."""
        return self.exit_code == -PAST_ITS_LIMIT


def describe_exit(exit_code: int | None) -> str:
    if exit_code is None:
        return "how is not known"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {-exit_code} ({signal.Signals(-exit_code).name})"
    except ValueError:  # a real-time signal
        return f"signal {-exit_code}"


class ReplyKind(enum.IntEnum):
    """The kinds of messages from a child process. Each message has a kind, the number of a call, and a value."""

    UP = 0  # it is ready for calls; the value is its first `LoadReport`
    ACCEPTED = 1  # it begins the call
    DONE = 2  # the call has this result
    FAILED = 3  # the call raised this error
    LEAVING = 4  # it runs nothing any more, and ends
    LOADED = 5  # it starts, and takes calls before its next load; the value is a `LoadReport` of what it has so far
    LOADING = 6  # it was told nothing for a while after a load, and loads all that is left


class ChildCommand(enum.IntEnum):
    """The commands of the main process to a child process."""

    CONTINUE = 0
    YIELD = 1  # return after this step: other batches wait for their turn, or jobs wait to join
    DRAIN = 2  # the worker stops: no other call follows


class SharedState(ctypes.Structure):
    """The memory that both processes read without a lock, since the child process may be killed at any time."""

    _fields_ = [
        ("loading", ctypes.c_int),  # 1-based place in its assignment of the model it loads, or 0; the child writes it
        ("command", ctypes.c_int),  # a `ChildCommand`; the main process writes it
        ("computing", ctypes.c_longlong),  # the number of the call whose engine runs, or ran last; the child writes it
        ("reading", ctypes.c_longlong),  # the number of the call whose inputs are read beside it, or 0; likewise
        ("job", ctypes.c_ubyte * len(NO_JOB)),  # the one job that an open batch's engine handles, or `NO_JOB`; likewise
    ]


def map_shared_state(descriptor: int) -> SharedState:
    """Return the state in the memory of this file descriptor, which may be closed then."""
    return SharedState.from_buffer(mmap.mmap(descriptor, ctypes.sizeof(SharedState)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The models that a child process has loaded."""

    pid: int
    models: Mapping[str, str]  # by digest, of each model of its assignment: READY, or why it is not loaded
    notes: Mapping[str, str] = field(default_factory=dict)  # by name: how the model is run, if in an unusual way
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by name: `Engine.facts`
    tracebacks: Mapping[str, str] = field(default_factory=dict)  # by digest, of models whose engine's own code failed
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes by digest, of the loaded models
    load_s: Mapping[str, float] = field(default_factory=dict)  # by digest, of the loaded models
    steps: frozenset[str] = frozenset()  # digests of the models that generate step by step
    total: int = 0  # bytes of its device, for all replicas that share it

    @property
    def ready(self) -> frozenset[str]:
        """The digests of the loaded models."""
        return frozenset(digest for digest, state in self.models.items() if state == READY)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCall:
    """A call to run these jobs of one model together, or to add them to a batch that is open."""

    batch: UUID
    number: int = 0  # the number of the batch in this worker
    model: str
    digest: str  # of the catalog entry that the jobs run by
    job_ids: tuple[UUID, ...]
    time_limit_s: float  # of each engine call
    ahead_s: float = 0.0  # the sum of the time limits of the calls that the child runs before this one
    is_last: bool = False  # no newer entry of the model will be run, since it could not be loaded
    again: bool = False  # it is run again to find the cause of a failure: only its claim is made ahead
    alone: bool = False  # no other batch runs beside it
    takes_over: tuple[UUID, ...] = ()  # batches that are known to have ended, whose rows may be claimed
    goes_on: bool = False  # it continues a batch that is open in this child process
    waiting: tuple[UUID, ...] = ()  # other batches that are open in this child process and wait for their turn
    spare_threads: int = 0  # threads of torch beside the replica's own
    verdict: str = ""  # the error code to fail the jobs with, instead of running them
    raised: str = ""  # what the call raised that led to the verdict, for operators
    trace: str = ""  # where `raised` was raised


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """The recorded outcomes of a call, and the time that it took."""

    errors: dict[UUID, str]  # error codes by job, of the jobs that were claimed; "" for a success
    engine_s: float = 0.0
    overhead_s: float = 0.0  # of the child process, without the engine and the reading ahead
    read_s: float = 0.0  # for reading the inputs ahead, beside another call
    jobs: int = 0  # of the engine call
    size: int = 0  # rows of the engine call
    length: float = 0.0  # tokens of a row: of the longest where rows are padded, else the mean
    cut_at: int | None = None  # most tokens of a text that the model reads, or of a prompt with its answer
    padded: bool = True
    calls: int = 0  # engine calls; more than one when a culprit was isolated
    oom_shape: tuple[int, float] | None = None  # (size, length) that did not fit on the device
    left: frozenset[UUID] = frozenset()  # jobs that continue with the next call of the batch
    put_off: frozenset[UUID] = frozenset()  # jobs of this call that cannot join yet
    room: Room = field(default_factory=Room)  # for the jobs that join next
    capacity: int = 0  # tokens of KV cache in all; 0 for a model that does not generate step by step
    tokens: int = 0  # generated since the last report
    firsts_s: tuple[float, ...] = ()  # from creation to first token, of each job whose first token came
    answers: tuple[int, ...] = ()  # tokens of each job that ended
