"""Several short engine calls behind one claim, one record and one notice: of low priority, and waiting together."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from inference.catalog.specs import ModelSpec
from inference.figures import tallies
from inference.store.transitions import Claimed
from inference.worker import claims
from inference.worker.calls import Asked, BatchCall, BatchReport
from inference.worker.loaded import LoadedModels
from inference.worker.stages import Stages, claimed

LONGEST_S = 0.2  # since the first call began: no other is begun, though it was expected to be over by then


@dataclass(slots=True, eq=False)
class SeveralStages:
    """As `Stages`, of a batch that has `shares`. Each is a batch by itself for its engine call, and for what is told of
    it. Between two of them the main process may have the child come back: what has not begun is left."""

    call: BatchCall
    spec: ModelSpec | None
    replica: LoadedModels
    each: list[Stages] = field(default_factory=list)
    unbegun: list[Claimed] = field(default_factory=list)

    def claim(self) -> None:
        jobs = {job.id: job for job in claimed(self.call, self.replica)}
        ends = list(accumulate(self.call.shares))
        for begin, end in zip([0, *ends], ends, strict=False):
            if share := [jobs[job_id] for job_id in self.call.job_ids[begin:end] if job_id in jobs]:
                stages = Stages(self.call, self.spec, self.replica)
                stages.begin(share)
                self.each.append(stages)

    def prepare(self) -> None:
        for stages in self.each:
            stages.prepare()

    def compute(self) -> None:
        began = time.monotonic()
        for place, stages in enumerate(self.each):
            if place and (self._is_called_back() or time.monotonic() - began > LONGEST_S):
                self.unbegun = [job for others in self.each[place:] for job in others.jobs]
                del self.each[place:]
                return
            stages.compute()

    def _is_called_back(self) -> bool:
        return bool(self.replica.shared.asked == Asked.COME_BACK)

    def record(self) -> BatchReport:
        if not self.each:
            return BatchReport(errors={})
        outcomes = [stages.outcomes() for stages in self.each]
        sizes = {outcome.job_id: stages.size for stages, of in zip(self.each, outcomes, strict=True) for outcome in of}
        counted = tallies.sum_of(stages.counted() for stages in self.each)
        recorded = {
            outcome.job_id: outcome
            for outcome in claims.record(
                self.call.batch, [outcome for of in outcomes for outcome in of], batch_size=sizes, beside=counted
            )
        }
        reports = [
            stages.report([recorded[outcome.job_id] for outcome in of])
            for stages, of in zip(self.each, outcomes, strict=True)
        ]
        return self._report(reports)

    def _report(self, each: Sequence[BatchReport]) -> BatchReport:
        return BatchReport(
            errors={job_id: code for report in each for job_id, code in report.errors.items()},
            engine_s=sum(report.engine_s for report in each),
            each=tuple(each),
            unbegun=frozenset(job.id for job in self.unbegun),
        )
