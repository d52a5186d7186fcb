"""The threads of an idle replica, which a job alone on the CPU gets too while nothing else runs or waits."""

import sys
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from inference.batching.costs import CostModel
from inference.worker.calls import BatchReport
from inference.worker.replicas import devices
from inference.worker.scheduling.backlog import Backlog
from inference.worker.scheduling.held_jobs import Batch

LINUX = "linux"  # elsewhere the threads of OpenMP keep their core from others for long after a call
LEARNT = 8  # calls after which the time of a call is known
LONGEST_S = 0.5  # seconds that a call may be expected to take: other jobs may come that need the core
WORTH = 0.95  # share of the time with a replica's own threads, above which spare threads are given up for a while
PRIOR = 0.8  # that share, as it is assumed before it is known
WEIGHT = 0.1  # weight of the newest call in an average
MOST = 4.0  # times the own pace that a call counts for
OWN_EVERY = 16  # of so many calls one has its replica's own threads, so that their time is known
TRUSTED_AFTER = 64  # calls in a row for which spare threads were kept, after which the pause is short again
FIRST_PAUSE, LONGEST_PAUSE = 16, 1024  # calls


@dataclass(slots=True)
class _Paces:
    """The seconds that calls of a model take for a unit of work, with a replica's own threads and with spare ones."""

    own: float = 0.0
    spare: float = 0.0  # 0: not known
    calls: int = 0  # with own threads
    turns: int = 0  # calls that might have had spare threads
    kept: int = 0  # calls with spare threads since they were given up
    resume_at: int = 0  # the turn from which they may be given again
    pause: int = FIRST_PAUSE

    def take_turn(self) -> bool:
        """Return True if the next call is to have spare threads."""
        self.turns += 1
        return self.calls >= LEARNT and self.turns % OWN_EVERY > 0 and self.turns >= self.resume_at

    def observe_own(self, pace: float) -> None:
        self.own += (pace - self.own) * max(WEIGHT, 1 / (self.calls + 1))
        self.calls += 1

    def observe_spare(self, pace: float) -> None:
        before = self.spare or PRIOR * self.own
        self.spare = before + WEIGHT * (min(pace, MOST * self.own) - before)
        self.kept += 1
        if self.spare > WORTH * self.own:
            self.give_up()
        elif self.kept >= TRUSTED_AFTER:
            self.pause = FIRST_PAUSE

    def give_up(self) -> None:
        self.resume_at, self.spare, self.kept = self.turns + self.pause, 0.0, 0
        self.pause = min(2 * self.pause, LONGEST_PAUSE)


class SpareThreads:
    """The choice of a call's threads, by whether spare ones have made the model's calls faster.

    All threads of a call wait for the last one. If another program uses its core, the call takes several times as long.
    So the time is measured, and spare threads are tried again after a number of calls that grows.
    """

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._paces: WeakKeyDictionary[CostModel, _Paces] = WeakKeyDictionary()  # a model that changes has new costs

    def choose_threads(self, batch: Batch) -> None:
        """Set the number of spare threads for a batch's next call."""
        is_only = self._is_only(batch)
        is_given = is_only and self._get_paces(batch).take_turn()
        batch.note_threads(self._backlog.replicas.plan.threads if is_given else 0, is_only=is_only)

    def _is_only(self, batch: Batch) -> bool:
        """Return True if a batch is one job, a replica is idle beside it, and nothing else runs or waits."""
        replicas, plan = self._backlog.replicas, self._backlog.replicas.plan
        return (
            len(batch.jobs) == 1
            and not batch.is_closed
            and not len(self._backlog)
            and all(other is batch for other in self._backlog.batches.values())
            and replicas.able_child_count == plan.replicas > 1
            and not any(each.is_loading for each in replicas.replicas)
            and not replicas.can_child_work_ahead(batch.pid)
            and batch.device == devices.CPU
            and 2 * plan.threads <= devices.count_cores()
            and sys.platform == LINUX
            and (replicas.generates_by_steps(batch.spec.name) or self._predict_batch_s(batch) <= LONGEST_S)
        )

    def _predict_batch_s(self, batch: Batch) -> float:
        item = batch.jobs[0].item
        return self._get_costs(batch).predict_call_s(item.size, item.length)

    def learn_from_report(self, batch: Batch, report: BatchReport) -> None:
        """Learn from the report of a call that was the only one as it was sent."""
        work = self._measure_work(batch, report) if batch.is_only else 0.0
        if work and report.engine_s:
            paces = self._get_paces(batch)
            (paces.observe_spare if batch.spare_threads else paces.observe_own)(report.engine_s / work)

    def withhold_threads(self, batch: Batch) -> None:
        """Give the threads up for a while, since a call with them ended its process or ran past its time limit."""
        if batch.spare_threads:
            self._get_paces(batch).give_up()

    def _measure_work(self, batch: Batch, report: BatchReport) -> float:
        """Return the seconds that the model's cost predicts, or the steps of a model that generates step by step.

        Steps are counted for one row, and in calls that read no prompt.
        """
        if report.capacity:
            return 0.0 if batch.called or report.size > 1 else float(report.tokens)
        costs = self._get_costs(batch)
        if report.calls != 1 or costs.calls < LEARNT:
            return 0.0
        return costs.predict_engine_s(report.size, report.length)

    def _get_costs(self, batch: Batch) -> CostModel:
        return self._backlog.queues[batch.spec.name].costs

    def _get_paces(self, batch: Batch) -> _Paces:
        return self._paces.setdefault(self._get_costs(batch), _Paces())
