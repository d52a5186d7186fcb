"""The threads of an idle replica, which a call on the CPU gets too while nothing else runs or waits."""

import sys
import time
from dataclasses import dataclass, field

from inference.failures import Pauses
from inference.worker.calls import BatchReport
from inference.worker.replicas.devices import CPU
from inference.worker.scheduling.backlog import LEARNT, Backlog
from inference.worker.scheduling.inflight import Batch

LINUX = "linux"  # elsewhere the threads of OpenMP keep their core from others for long after a call
REPLICAS = 2  # replicas whose threads a call gets: of more the gain is small, and a shorter text has no work for them
WORTH = 0.95  # share of the time with a replica's own threads, above which more threads are given up for a while
PRIOR = 0.8  # that share, as it is assumed before it is known
WEIGHT = 0.1  # weight of the newest call in an average
MOST = 2.0  # times the pace with its own threads that a call counts for: one call that was disturbed decides nothing
OWN_EVERY = 16  # of so many calls one has its replica's own threads, so that their time is known
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0


@dataclass(slots=True)
class _Paces:
    """The seconds that calls of a model take for a unit of work, with a replica's own threads and with more."""

    own: float = 0.0
    more: float = 0.0  # 0: not known
    calls: int = 0  # with a replica's own threads
    turns: int = 0  # calls that could have had more
    until: float = 0.0  # monotonic: when more threads may be tried again
    pauses: Pauses = field(default_factory=lambda: Pauses(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S))

    def may_have_more(self) -> bool:
        self.turns += 1
        return self.calls >= LEARNT and self.turns % OWN_EVERY > 0 and time.monotonic() >= self.until

    def observe_own(self, pace: float) -> None:
        self.own += (pace - self.own) * max(WEIGHT, 1 / (self.calls + 1))
        self.calls += 1

    def observe_more(self, pace: float) -> None:
        before = self.more or PRIOR * self.own
        self.more = before + WEIGHT * (min(pace, MOST * self.own) - before)
        if self.more > WORTH * self.own:  # another program uses the core, or the model is too small
            self.until, self.more = time.monotonic() + self.pauses.next_s(), 0.0
        elif pace <= WORTH * self.own:
            self.pauses.reset()


class SpareThreads:
    """The choice of a call's threads, by whether more of them have made the model's calls faster.

    A thread that waits for the core of another program makes a call slower by much, since all threads of a call wait
    for the last one. So the time is measured, and more threads are tried again after a growing pause.
    """

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._paces: dict[str, _Paces] = {}  # by model

    def choose(self, batch: Batch) -> None:
        """Set the threads of a batch's next call."""
        batch.is_only, batch.threads = self._is_only(batch), 0
        if batch.is_only and self._paces_of(batch).may_have_more():
            batch.threads = REPLICAS * self._backlog.replicas.plan.threads

    def _is_only(self, batch: Batch) -> bool:
        """Return True if a whole replica is idle beside the batch, and nothing waits for it."""
        plan = self._backlog.replicas.plan
        return (
            plan.replicas >= REPLICAS and batch.device == CPU and sys.platform == LINUX and not batch.is_closed
            and not batch.shares and not len(self._backlog)
            and all(other is batch for other in self._backlog.batches.values())
        )  # fmt: skip

    def observe(self, batch: Batch, report: BatchReport) -> None:
        """Learn from the report of a call that was the only one as it was sent."""
        work = self._work(batch, report) if batch.is_only else 0.0
        if work and report.engine_s:
            paces = self._paces_of(batch)
            (paces.observe_more if batch.threads else paces.observe_own)(report.engine_s / work)

    def _work(self, batch: Batch, report: BatchReport) -> float:
        """Return the steps of a model that generates step by step, else the seconds that the model's cost predicts."""
        if report.capacity:
            return report.tokens / max(1, report.size)
        costs = self._backlog.queues[batch.spec.name].costs
        if report.calls != 1 or costs.calls < LEARNT:
            return 0.0
        return costs.seconds(report.size, report.length) - costs.overhead_s

    def _paces_of(self, batch: Batch) -> _Paces:
        return self._paces.setdefault(batch.spec.name, _Paces())
