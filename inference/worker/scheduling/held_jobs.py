"""The jobs that a worker holds and its batches in flight, as its main process has them."""

import itertools
import math
import time
from collections.abc import Collection, Set
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from inference.batching.queue import Item
from inference.batching.room import Room
from inference.catalog.specs import ModelSpec
from inference.values.uuid_parsing import make_uuid_from_hex
from inference.worker.replicas.device_health import Incident

MOST_OVER = 100  # batch ids that a claim names for a job; a job that fails more often has no lease any more


class MessageRequest(Protocol):
    """The request that stands for a message of jobs. It tells the broker what becomes of them."""

    def report_started(self, pid: int) -> None: ...

    def note_job_end(self, error: str, runtime: float) -> None: ...

    def give_back_message(self) -> None: ...

    def remove_from_running_tasks(self) -> None: ...


@dataclass(slots=True, eq=False)
class HeldJob:
    """A job that the main process holds: its item, its messages, and the failures that it had here.

    It is a record: the isolation and the settlement write what became of its runs.
    """

    item: Item
    model: str
    requests: list[MessageRequest]
    is_from_row: bool = False  # it was found by its row, without its message
    takes_over: tuple[UUID, ...] = ()  # the ended batches of its runs; the last may not have claimed it
    crashes_alone: int = 0  # times that its process died, or its call failed, with it alone
    times_stuck: int = 0  # times that its process was killed as stuck outside an engine
    times_suspended: int = 0  # times that its time limit ended while the worker was stopped
    verdict: str = ""  # the error code it fails with, instead of being run
    raised: str = ""  # what its last call raised, for operators
    trace: str = ""  # where `raised` was raised
    incident: Incident | None = None  # the failure of a device that the job was part of
    failed_on: frozenset[str] = frozenset()  # devices that failed with the job
    job_id: UUID = field(init=False)

    def __post_init__(self) -> None:
        self.job_id = make_uuid_from_hex(self.item.id.replace("-", ""))

    def add_ended_batch(self, batch: UUID) -> None:
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
    device: str = ""  # the device of that child, which is not known any more once its process is gone
    search: Bisection | None = None  # the search that this batch is a step of
    is_closed: bool = False  # no job may join: the batch is run again, or alone
    has_company: bool = False  # its child process had other batches at the same time
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
    suspended_s: float = 0.0  # seconds for which the worker itself was stopped during the last call
    stuck: bool = False  # its child process was killed as stuck outside the engine
    killed_at: float = math.inf  # monotonic: when the kill began

    def __post_init__(self) -> None:
        self.begun, self.called = list(self.jobs), list(self.jobs)

    @property
    def must_run_alone(self) -> bool:
        """True if nothing may run beside the batch."""
        return self.begun[0].item.alone

    # These methods change its jobs.

    def add_joining_jobs(self, jobs: list[HeldJob]) -> None:
        """Have these jobs, which may be none, join with the next call."""
        self.called = jobs
        self.jobs += jobs
        for held in jobs:
            self.room = self.room.subtract_rows(held.item.size, held.item.length)

    def take_out_jobs(self, ids: Set[UUID]) -> list[HeldJob]:
        """Take the jobs with these ids out of the batch, and return them."""
        if not ids:
            return []
        taken = [held for held in self.jobs if held.job_id in ids]
        self.jobs = [held for held in self.jobs if held.job_id not in ids]
        return taken

    # These methods note what becomes of its calls.

    def note_threads(self, spare: int, *, is_only: bool) -> None:
        """Note the spare threads of the next call, and whether nothing else runs or waits as it is sent."""
        self.spare_threads, self.is_only = spare, is_only

    def note_concurrent_batch(self) -> None:
        """Note that its child process has another batch at the same time."""
        self.has_company = True

    def note_room(self, room: Room) -> None:
        self.room = room

    def note_sent_call(self, result: Any) -> None:
        self.result = result
        self.called_at = self.accepted_at = time.monotonic()
        self.has_begun, self.suspended_s = False, 0.0

    def note_accepted_call(self, pid: int) -> None:
        self.pid, self.has_begun, self.accepted_at = pid, True, time.monotonic()
        self.begun_at = self.begun_at or self.accepted_at

    def note_previous_call_end(self) -> None:
        """Note that its child process has ended the call before, and begins the last one."""
        self.accepted_at = time.monotonic()

    def note_call_end(self) -> None:
        self.result = None

    def update_is_open(self, left: Collection[UUID]) -> None:
        """Note which jobs continue with the next call of the batch, if any."""
        self.is_open = bool(left)

    def note_end(self) -> None:
        """Note that no other call of the batch follows."""
        self.is_open = False

    def note_suspension(self, suspended_s: float, now: float) -> None:
        """Exclude seconds in which the worker itself was stopped."""
        self.suspended_s += suspended_s
        self.accepted_at = min(now, self.accepted_at + suspended_s)
        self.killed_at += suspended_s

    def note_kill(self, now: float) -> None:
        """Note that its child process is being killed as stuck."""
        self.stuck, self.killed_at = True, min(self.killed_at, now)
