"""Several short engine calls with one claim, one record and one notice, for jobs that waited together."""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import accumulate, chain
from uuid import UUID

from inference.catalog.specs import ModelSpec
from inference.figures import tallies
from inference.store.transitions import Claimed
from inference.telemetry import logs
from inference.worker.calls import BatchCall, BatchReport, ChildCommand
from inference.worker.child import claims
from inference.worker.child.batch_run import BatchRun
from inference.worker.child.loaded_models import LoadedModels

LONGEST_S = 0.2  # seconds since the first engine call began, after which no other begins: all were expected to be over


@dataclass(slots=True, eq=False)
class MultiBatchRun:
    """The run of a batch that has `shares`: each is an engine call of its own and is reported by itself.

    The main process may call the child back between two engine calls. The claims of jobs that have not begun are taken
    back then.
    """

    call: BatchCall
    spec: ModelSpec | None
    replica: LoadedModels
    each: list[BatchRun] = field(default_factory=list)
    unbegun: list[Claimed] = field(default_factory=list)

    def claim_jobs(self) -> None:
        with self._bind_log_ids():
            self._group_into_runs({job.id: job for job in claims.claim_jobs(self.call, self.replica)})

    def _bind_log_ids(self) -> AbstractContextManager[None]:
        return logs.bind_ids(batch=self.call.batch, model=self.call.model)

    def _group_into_runs(self, jobs: Mapping[UUID, Claimed]) -> None:
        ends = list(accumulate(self.call.shares))
        for begin, end in zip([0, *ends], ends, strict=False):
            if share := list(filter(None, map(jobs.get, self.call.job_ids[begin:end]))):
                stages = BatchRun(self.call, self.spec, self.replica)
                stages.group_into_calls(share)
                self.each.append(stages)

    def prepare_inputs(self) -> None:
        for stages in self.each:
            stages.prepare_inputs()

    def compute_answers(self, *, is_prepared: bool = False) -> None:
        began = time.monotonic()
        for place, stages in enumerate(self.each):
            if place and (self._is_called_back() or time.monotonic() - began > LONGEST_S):
                self.unbegun = [job for others in self.each[place:] for job in others.jobs]
                del self.each[place:]
                return
            stages.compute_answers(is_prepared=is_prepared)

    def _is_called_back(self) -> bool:
        return self.call.number in self.replica.shared.called_back

    def record_outcomes(self) -> BatchReport:
        if not self.each:
            return BatchReport(errors={})
        outcomes = [stages.make_outcomes() for stages in self.each]
        sizes: dict[UUID, int] = {}
        for stages, of in zip(self.each, outcomes, strict=True):
            sizes |= dict.fromkeys((outcome.job_id for outcome in of), stages.row_count)
        counted = tallies.sum_tallies(stages.make_tally() for stages in self.each)
        with self._bind_log_ids():
            recorded = claims.record_outcomes(self.call.batch, list(chain(*outcomes)), batch_size=sizes, beside=counted)
            claims.take_back_claim(
                self.call.batch,
                [job.id for job in self.unbegun],
                keeps_messages=self.replica.shared.command != ChildCommand.DRAIN,  # else the jobs are given back
            )
        each = tuple(stages.make_report(()) for stages in self.each)
        return BatchReport(
            errors={outcome.job_id: outcome.error_code for outcome in recorded},
            engine_s=sum(report.engine_s for report in each),
            each=each,
            unbegun=frozenset(job.id for job in self.unbegun),
        )
