"""The run of one batch, from claim to notice, in three stages.

The stages run one after the other, and each may run in another thread.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from inference import errors, failpoints
from inference.catalog.sizes import lengths
from inference.catalog.specs import ModelSpec, digest_parameters
from inference.engines.base import Engine
from inference.engines.runtime.engine_calls import RunReport
from inference.engines.runtime.engine_calls import run_engine_with_isolation as run_engine
from inference.figures import tallies
from inference.figures.tallies import Tally
from inference.store import wholes
from inference.store.outcome_records import Outcome
from inference.store.transitions import Claimed
from inference.telemetry import logs
from inference.worker.calls import BatchCall, BatchReport
from inference.worker.child import batch_job_rows
from inference.worker.child.loaded_models import LoadedModels
from inference.worker.child.outcome_builder import make_condemned_outcome, make_failure, make_outcome
from inference.worker.child.time_limit import end_process_after

logger = logging.getLogger(__name__)

NEAR = 4  # factor by which an estimate of tokens may be off


@dataclass(slots=True, eq=False)
class EngineCall:
    """The jobs of a batch that have the same parameters, and so run in one engine call, with their items."""

    spec: ModelSpec
    jobs: Sequence[Claimed]
    items: list[list[Any]]  # the items of each job
    parameters: dict[str, Any]
    prepared: Any = None  # the result of `Engine.prepare`, if it was called
    report: RunReport | None = None

    @property
    def all_items(self) -> list[Any]:
        return [item for items in self.items for item in items]

    def refuse_expected_large_answers(self, engine: Engine) -> list[Outcome]:
        """Take out the jobs whose answers would hold more numbers than are kept, and return their failures.

        This happens before anything is computed. Tokens are counted only if the estimate comes near the limit.
        """
        near = lengths.MOST_ANSWERED / NEAR
        if not any(job.size * job.length * engine.numbers_a_token > near for job in self.jobs):
            return []
        with engine.reading:
            tokens = iter(engine.count_tokens(self.all_items, dict(self.parameters)))
        numbers = [engine.numbers_a_token * sum(next(tokens) for _ in items) for items in self.items]
        entries = list(zip(self.jobs, self.items, numbers, strict=True))
        kept = [(job, items) for job, items, count in entries if count <= lengths.MOST_ANSWERED]
        if len(kept) < len(entries):
            self.jobs, self.items, self.prepared = [job for job, _ in kept], [items for _, items in kept], None
        return [
            make_failure(job, errors.InvalidInput(wholes.describe_overflow(count)))
            for job, _, count in entries
            if count > lengths.MOST_ANSWERED
        ]

    def make_outcomes(self) -> Iterator[Outcome]:
        answers = iter(self.report.outcomes if self.report else ())
        full_text = self.report is not None and self.report.full_text
        for job, items in zip(self.jobs, self.items, strict=True):
            yield make_outcome(self.spec, job, [next(answers) for _ in items], full_text=full_text)


@dataclass(slots=True, eq=False)
class BatchRun:
    """The run of one batch of a model that answers a batch at once, or of jobs that are condemned.

    An exception that a stage raises ends the batch.
    """

    call: BatchCall
    spec: ModelSpec | None
    replica: LoadedModels
    jobs: list[Claimed] = field(default_factory=list)
    calls: list[EngineCall] = field(default_factory=list)
    refused: list[Outcome] = field(default_factory=list)
    spent_s: float = 0.0
    read_s: float = 0.0
    is_read: threading.Event = field(default_factory=threading.Event)  # set as `prepare_inputs_ahead` ends, if it runs

    def claim_jobs(self) -> None:
        """Claim the batch, and do all else that can be done before the engine is free.

        There is one engine call for each set of parameters. The messages already grouped the jobs, so there is one set.

        Raises `NotYet` for jobs that were accepted by a newer entry of the model.
        """
        with self._measure_time():
            self._group_into_calls(batch_job_rows.claim_jobs(self.call, self.replica))

    def _group_into_calls(self, jobs: list[Claimed]) -> None:
        """Group the claimed jobs into engine calls, and fail those that are condemned or have invalid parameters."""
        self.jobs = jobs
        if self.call.verdict or self.spec is None:
            self.refused = [
                make_condemned_outcome(job, self.call.verdict, self.call.raised, self.call.trace) for job in jobs
            ]
            return
        for same in _group_by_parameters(jobs):
            try:
                parameters = batch_job_rows.check_parameters_again(self.spec, same[0], is_last=self.call.is_last)
            except errors.InvalidInput as error:
                self.refused += [make_failure(job, error) for job in same]
            else:
                items = [lengths.list_items(self.spec, job.inputs) for job in same]
                self.calls.append(EngineCall(self.spec, same, items, parameters))

    def prepare_inputs_ahead(self) -> None:
        """Read the inputs ahead, while another call computes.

        If they cannot be read, the engine call itself finds out what is wrong.
        """
        if self.spec and not self.call.again and (engine := self.replica.get_engine(self.spec)).can_prepare_ahead:
            self._read_inputs(engine)
        self.is_read.set()

    def _read_inputs(self, engine: Engine) -> None:
        with engine.reading, self._measure_time():
            began = time.monotonic()
            self.replica.shared.reading = self.call.number
            for call in self.calls:
                try:
                    call.prepared = engine.prepare(call.all_items, dict(call.parameters))
                except BaseException as error:
                    logger.debug("not prepared: %s", logs.describe_error(error))
            self.replica.shared.reading = 0
            self.read_s = time.monotonic() - began

    def compute_answers(self, *, is_prepared: bool = False) -> None:
        """Run the engine calls, in the thread of the engines.

        The inputs may still be read by another thread. The wait for it counts against the time limit of this batch, not
        of the batch that was computed meanwhile.
        """
        if self.spec is None or not self.calls:
            return
        engine, shared = self.replica.get_engine(self.spec), self.replica.shared
        engine.spec = self.spec  # several entries may share the engine: this one runs now
        failpoints.reach("before_run")
        shared.computing = self.call.number
        for call in self.calls:
            with end_process_after(self.spec.time_limit_s):
                if is_prepared:
                    self.is_read.wait()
                with self._measure_time():
                    self.refused += call.refuse_expected_large_answers(engine)
                if not call.jobs:
                    continue
                with self._measure_time():
                    call.report = run_engine(engine, call.all_items, call.parameters, call.prepared)
        shared.computing = 0
        failpoints.reach("after_run")

    def record_outcomes(self) -> BatchReport:
        if not self.jobs:
            return BatchReport(errors={})
        with self._measure_time():
            outcomes = batch_job_rows.record_outcomes(
                self.call.batch, self._make_outcomes(), batch_size=self._row_count, beside=self._make_tally()
            )
        return self._make_report(outcomes)

    def _make_outcomes(self) -> list[Outcome]:
        return [*self.refused, *(outcome for call in self.calls for outcome in call.make_outcomes())]

    @contextlib.contextmanager
    def _measure_time(self) -> Iterator[None]:
        began = time.monotonic()
        with logs.bind_ids(batch=self.call.batch, model=self.call.model):
            yield
        self.spent_s += time.monotonic() - began

    @property
    def _reports(self) -> list[RunReport]:
        return [call.report for call in self.calls if call.report]

    @property
    def _engine_s(self) -> float:
        return sum(report.engine_s for report in self._reports)

    @property
    def _is_padded(self) -> bool:
        return all(report.padded for report in self._reports)

    @property
    def _computed(self) -> list[Claimed]:
        """Return the jobs that the engine was given; all of the batch if it was given none."""
        return [job for call in self.calls if call.report for job in call.jobs] or self.jobs

    @property
    def _row_count(self) -> int:
        return sum(job.size for job in self._computed)

    @property
    def _cut_at(self) -> int | None:
        return next((report.cut_at for report in self._reports), None)

    def _count_tokens(self) -> tuple[int, int]:
        """Return the tokens of the longest item and of all items together, as far as the model reads them."""
        cut_at, jobs = self._cut_at, self._computed
        tokens = [min(job.length, cut_at or job.length) for job in jobs]
        return max(tokens), sum(job.size * own for job, own in zip(jobs, tokens, strict=True))

    def _make_tally(self) -> Tally:
        """Return what the figures count of the batch; nothing if no engine call ran."""
        tally: Tally = {}
        if self._reports:
            size, (longest, real) = self._row_count, self._count_tokens()
            tallies.add_value(tally, "batch", size)
            padded = size * longest if self._is_padded else real
            tally |= {"real": real, "padded": padded, "engine_s": self._engine_s}
        return tally

    def _make_report(self, outcomes: Sequence[Outcome]) -> BatchReport:
        size, (longest, real) = self._row_count, self._count_tokens()
        return BatchReport(
            errors={outcome.job_id: outcome.error_code for outcome in outcomes},
            engine_s=self._engine_s,
            overhead_s=self.spent_s - self._engine_s - self.read_s,
            read_s=self.read_s,
            jobs=len(self.jobs),
            size=size,
            length=longest if self._is_padded else real / size,
            cut_at=self._cut_at,
            padded=self._is_padded,
            calls=sum(report.calls for report in self._reports),
            oom_shape=next((report.oom_shape for report in self._reports if report.oom_shape), None),
        )


def _group_by_parameters(jobs: Sequence[Claimed]) -> Iterator[list[Claimed]]:
    def get_group(job: Claimed) -> str:
        return digest_parameters(job.parameters)

    for _, same in groupby(sorted(jobs, key=get_group), key=get_group):
        yield list(same)
