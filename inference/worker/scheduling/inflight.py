"""What the worker's main process knows of the jobs it holds and of the batches in flight."""

import itertools
import math
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from uuid import UUID

from inference.batching.queue import Item
from inference.batching.room import Room
from inference.catalog.specs import ModelSpec
from inference.fields.uuids import id_of_hex
from inference.worker.replicas.device_health import Incident

MOST_OVER = 100  # ids that a claim names of a job; whoever fails more often has no lease any more


@dataclass(slots=True, eq=False)
class HeldJob:
    """One job in this process: its item, its messages, and what has happened to it here."""

    item: Item
    model: str
    requests: list[Any]
    is_from_row: bool = False  # it was found without its message
    takes_over: tuple[UUID, ...] = ()  # the batches of its runs, known to be over: the last may not have claimed it
    crashes_alone: int = 0  # of its process
    times_stuck: int = 0  # that its process was killed for what no engine did
    times_paused: int = 0  # that its time ended while the worker was stopped
    verdict: str = ""  # the error code it fails with, instead of being run
    raised: str = ""  # by its last call, for operators
    trace: str = ""  # where that was raised
    incident: Incident | None = None  # that it was in when a device failed
    failed_on: frozenset[str] = frozenset()  # devices
    job_id: UUID = field(init=False)

    def __post_init__(self) -> None:
        self.job_id = id_of_hex(self.item.id.replace("-", ""))

    def is_over(self, batch: UUID) -> None:
        self.takes_over = (*(over for over in self.takes_over if over != batch), batch)[-MOST_OVER:]


@dataclass(slots=True, eq=False)
class Bisection:
    """For the one job of a dead batch that kills its process: half of the `suspects` run at a time.

    What cannot be it is set aside and runs in one call at the end, so that one culprit of n costs at most log2(n) + 3
    calls, and fewer processes than that.
    """

    suspects: list[HeldJob]
    aside: list[HeldJob] = field(default_factory=list)

    def tested(self) -> list[HeldJob]:
        return self.suspects[: len(self.suspects) // 2]

    def narrow(self, tested: list[HeldJob], *, died: bool) -> None:
        others = [held for held in self.suspects if held not in tested]
        self.suspects = tested if died else others
        if died:
            self.aside += others


@dataclass(slots=True, eq=False)
class Batch:
    """One pool call in flight; or several, one after the other, of one that is open."""

    id: UUID
    number: int = field(default_factory=itertools.count(1).__next__, init=False)
    spec: ModelSpec
    jobs: list[HeldJob]  # that have not ended
    pid: int  # the child that it was sent to
    device: str = ""  # of that
    search: Bisection | None = None  # that this is a step of
    is_closed: bool = False  # nobody may join: it is run again, or alone
    has_company: bool = False  # its child had other batches when it had this one
    shares: tuple[int, ...] = ()  # jobs of each engine call, where there are several
    begun: list[HeldJob] = field(init=False)  # the jobs that it began with
    called: list[HeldJob] = field(init=False)  # those that the last call brought
    result: Any = None  # of a call that is not over
    called_at: float = 0.0  # monotonic
    has_begun: bool = False  # a child has the last call
    accepted_at: float = 0.0  # monotonic: since when
    begun_at: float = 0.0  # monotonic: since when a child has had its first call
    is_open: bool = False  # its first call came back, and jobs of it go on
    room: Room = field(default_factory=Room)  # for those that join
    timed_out: bool = False  # its engine ran past the model's limit
    paused_s: float = 0.0  # for which the worker itself was stopped during the last call
    stuck: bool = False  # its child was killed, and not for what its engine did
    killed_at: float = math.inf  # monotonic: when that began

    def __post_init__(self) -> None:
        self.begun, self.called = list(self.jobs), list(self.jobs)

    @property
    def is_alone(self) -> bool:
        """Whether nothing may run beside it."""
        return self.begun[0].item.alone

    def by_engine_call(self) -> list[list[HeldJob]]:
        jobs = iter(self.jobs)
        return [list(islice(jobs, share)) for share in self.shares or [len(self.jobs)]]
