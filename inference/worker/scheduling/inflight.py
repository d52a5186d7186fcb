"""The jobs that a worker holds and its batches in flight, as its main process has them."""

import itertools
import math
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from uuid import UUID

from inference.batching.queue import Item
from inference.batching.room import Room
from inference.catalog.specs import ModelSpec
from inference.fields.uuids import uuid_of_hex
from inference.worker.replicas.device_health import Incident

MOST_OVER = 100  # batch ids that a claim names for a job; a job that fails more often has no lease any more


@dataclass(slots=True, eq=False)
class HeldJob:
    """A job that the main process holds: its item, its messages, and the failures that it had here."""

    item: Item
    model: str
    requests: list[Any]
    is_from_row: bool = False  # it was found by its row, without its message
    takes_over: tuple[UUID, ...] = ()  # the ended batches of its runs; the last may not have claimed it
    crashes_alone: int = 0  # times that its process died, or its call failed, with it alone
    times_stuck: int = 0  # times that its process was killed as stuck outside an engine
    times_paused: int = 0  # times that its time limit ended while the worker was stopped
    verdict: str = ""  # the error code it fails with, instead of being run
    raised: str = ""  # what its last call raised, for operators
    trace: str = ""  # where `raised` was raised
    incident: Incident | None = None  # the failure of a device that the job was part of
    failed_on: frozenset[str] = frozenset()  # devices that failed with the job
    job_id: UUID = field(init=False)

    def __post_init__(self) -> None:
        self.job_id = uuid_of_hex(self.item.id.replace("-", ""))

    def note_batch_end(self, batch: UUID) -> None:
        self.takes_over = (*(over for over in self.takes_over if over != batch), batch)[-MOST_OVER:]


@dataclass(slots=True, eq=False)
class Bisection:
    """The search for the one job of a dead batch that ends its process: half of the `suspects` run at a time.

    Jobs that cannot be the culprit are set aside and run in one call at the end. So one culprit of n jobs costs at most
    log2(n) + 3 calls, and fewer processes than that.
    """

    suspects: list[HeldJob]
    aside: list[HeldJob] = field(default_factory=list)

    def select_next_half(self) -> list[HeldJob]:
        return self.suspects[: len(self.suspects) // 2]

    def narrow_suspects(self, tested: list[HeldJob], *, died: bool) -> None:
        others = [held for held in self.suspects if held not in tested]
        self.suspects = tested if died else others
        if died:
            self.aside += others


@dataclass(slots=True, eq=False)
class Batch:
    """A batch in flight, which is one call of the pool, or several in succession if the batch is open."""

    id: UUID
    number: int = field(default_factory=itertools.count(1).__next__, init=False)
    spec: ModelSpec
    jobs: list[HeldJob]  # jobs that have not ended
    pid: int  # the child that it was sent to
    device: str = ""  # the device of that child
    search: Bisection | None = None  # the search that this batch is a step of
    is_closed: bool = False  # no job may join: the batch is run again, or alone
    has_company: bool = False  # its child process had other batches at the same time
    shares: tuple[int, ...] = ()  # numbers of jobs of the engine calls, where there are several
    begun: list[HeldJob] = field(init=False)  # the jobs that the batch began with
    called: list[HeldJob] = field(init=False)  # the jobs that the last call brought
    is_only: bool = False  # nothing else ran or waited as the last call was sent
    spare_threads: int = 0  # threads of an idle replica that the last call was given
    result: Any = None  # the pool's result of a call that is not over
    called_at: float = 0.0  # monotonic: when the last call was sent
    has_begun: bool = False  # a child process has accepted the last call
    accepted_at: float = 0.0  # monotonic: when that was, or when the call's turn began
    begun_at: float = 0.0  # monotonic: when a child process accepted the first call
    is_open: bool = False  # a call came back, and jobs of the batch continue
    room: Room = field(default_factory=Room)  # for the jobs that join
    timed_out: bool = False  # its engine ran past the model's time limit
    paused_s: float = 0.0  # seconds for which the worker itself was stopped during the last call
    stuck: bool = False  # its child process was killed as stuck outside the engine
    killed_at: float = math.inf  # monotonic: when the kill began

    def __post_init__(self) -> None:
        self.begun, self.called = list(self.jobs), list(self.jobs)

    @property
    def is_alone(self) -> bool:
        """True if nothing may run beside the batch."""
        return self.begun[0].item.alone

    def split_by_engine_call(self) -> list[list[HeldJob]]:
        jobs = iter(self.jobs)
        return [list(islice(jobs, share)) for share in self.shares or [len(self.jobs)]]
