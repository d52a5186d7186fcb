"""An open batch in a child process: jobs join it while others are being answered.

Its model generates step by step. A call of the batch comes back after some steps, and the next call of the same batch
goes on from there. The jobs are claimed as they join and recorded as they end. Each has the model's time limit for
itself.
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, cast
from uuid import UUID

from inference import clock, errors
from inference.batching.room import Room
from inference.catalog.sizes import lengths
from inference.catalog.specs import ModelSpec
from inference.connection_retries import is_away
from inference.engines.runtime import engine_calls
from inference.engines.stepper import OPEN, Progress, Stepper
from inference.figures import tallies
from inference.figures.tallies import Tally
from inference.store import job_rows, transitions
from inference.store.outcome_records import Outcome
from inference.store.transitions import Claimed
from inference.telemetry import logs
from inference.worker.calls import BatchReport, ChildCommand, SharedState
from inference.worker.child import batch_job_rows
from inference.worker.child.generation.text_publisher import TextPublisher
from inference.worker.child.generation.time_limited_stepper import Key, TimeLimitedStepper
from inference.worker.child.outcome_builder import make_failure, make_outcome

logger = logging.getLogger(__name__)

SLICE_S = 0.5  # seconds after which a call comes back, at the end of a step
LOOK_S = 0.25  # seconds between two looks at the rows for jobs that were cancelled
KEEP_S = 10.0  # least seconds between two renewals of the leases, which last longer than that beyond the time limit
COUNTED = 0.25  # largest share of the time limit that a step counts: in a longer one its process may have been stopped
SEEDS = 2**63


@dataclass(slots=True, eq=False)
class RunningJob:
    """A job of an open batch that has not ended."""

    job: Claimed
    answers: list[Any]  # the answer of each item; OPEN if it has not ended
    until_s: float  # end of its time limit, in seconds that the steps of its batch took
    is_streamed: bool  # its text is published as it comes; not for a list, whose texts cannot be told apart
    details: bool  # its parameters ask for details
    pieces: list[list[str]]  # of each item: the pieces of text that the stepper has returned so far
    counts: list[int]  # of each item: the tokens that are generated

    @property
    def generated_token_count(self) -> int:
        return sum(self.counts)

    @property
    def character_count(self) -> int:
        """The number of characters that were generated."""
        return sum(len(piece) for pieces in self.pieces for piece in pieces)

    @property
    def has_ended(self) -> bool:
        return all(answer is not OPEN for answer in self.answers)

    def make_cut_answer(self, index: int) -> list[dict[str, Any]]:
        """Return an answer made of an item's text so far, for a stepper that has none before the end of a row."""
        details = {"details": {"finish_reason": "length", "generated_tokens": self.counts[index]}}
        return [{"generated_text": "".join(self.pieces[index]), **(details if self.details else {})}]


@dataclass(slots=True, eq=False)
class JoiningJob:
    """A job that was let into the batch, and that the stepper has not read yet."""

    running: RunningJob
    items: Sequence[Any]
    parameters: dict[str, Any]


@dataclass(slots=True, eq=False)
class OpenBatch:
    """A batch that is open in this process. The main process writes into `shared` what it wants while a call runs."""

    id: UUID
    spec: ModelSpec
    engine: InitVar[Stepper]
    shared: SharedState
    stepper: TimeLimitedStepper = field(init=False)
    jobs: dict[UUID, RunningJob] = field(default_factory=dict)  # jobs that have not ended
    most: int = 0  # the most rows that have run together
    steps_s: float = 0.0  # seconds that all its steps took, as far as they count
    looked_at: float = field(default_factory=time.monotonic)
    leased_until: float = math.inf  # monotonic: when the first lease of its jobs ends
    tokens: int = 0  # tokens generated since the last report
    firsts: list[float] = field(default_factory=list)  # seconds to the first token of a job, since the last report
    answers: list[int] = field(default_factory=list)  # the tokens of each job that has ended since the last report
    tally: Tally = field(default_factory=dict)  # counts for the figures, since the last record
    publisher: TextPublisher = field(init=False)

    def __post_init__(self, engine: Stepper) -> None:
        self.stepper = TimeLimitedStepper(engine, self.spec.time_limit_s, self.shared)
        self.publisher = TextPublisher(self.id)

    def run_steps(self, claimed: Sequence[Claimed], *, is_last: bool) -> BatchReport:
        """Let jobs join, and run steps until a job has ended, the main process asks for it, or `SLICE_S` is over.

        If the worker drains, it runs steps until all jobs have ended.
        """
        began_at = time.monotonic()
        codes: dict[UUID, str] = {}
        before_s, steps, put_off = self.steps_s, 0, []
        outcomes: list[Outcome] = []
        joining: list[JoiningJob] = []
        for job in claimed:
            try:
                joining.append(self._let_in_job(job, is_last=is_last))
            except errors.NotYet:
                put_off.append(job.id)
            except errors.InvalidInput as error:
                outcomes.append(make_failure(job, error))
        for each in joining:
            self._drop_cancelled()  # and renew all leases, as each join may take as long as the time limit
            self._join_items(each)
        outcomes += self._end_answered_jobs()
        while True:
            codes |= self._record_outcomes(outcomes)
            self._drop_cancelled()
            if not self.jobs or (steps and self._is_call_over(began_at, has_news=bool(codes or put_off))):
                break
            self.most = max(self.most, sum(running.answers.count(OPEN) for running in self.jobs.values()))
            step_at = time.monotonic()
            progress = self.stepper.step()
            self._count_step(time.monotonic() - step_at)
            steps += 1
            outcomes = self._take_progress(progress)
        self.publisher.publish_texts()
        tokens, self.tokens, firsts, self.firsts = self.tokens, 0, self.firsts, []
        answers, self.answers = self.answers, []
        engine_s = self.steps_s - before_s
        return BatchReport(
            errors=codes,
            engine_s=engine_s,
            overhead_s=time.monotonic() - began_at - engine_s,
            size=self.most,
            left=frozenset(self.jobs),
            put_off=frozenset(put_off),
            room=self._room,
            capacity=self.stepper.capacity,
            cut_at=self.stepper.context,
            tokens=tokens,
            firsts_s=tuple(firsts),
            answers=tuple(answers),
        )

    @property
    def _room(self) -> Room:
        rows, most = len(self.stepper), self.spec.max_batch_size
        return Room(rows=most - rows, tokens=self.stepper.room, longest=self.stepper.tokens_per_row, others=rows)

    def _is_call_over(self, began_at: float, *, has_news: bool) -> bool:
        command = self.shared.command
        if command == ChildCommand.DRAIN:
            return False
        return has_news or command == ChildCommand.YIELD or time.monotonic() - began_at > SLICE_S

    def _let_in_job(self, job: Claimed, *, is_last: bool) -> JoiningJob:
        """Make a job one of the batch, which renews its lease from now on.

        Raises `InvalidInput` and `NotYet`, as `batch_job_rows.check_parameters_again` does.
        """
        parameters = batch_job_rows.check_parameters_again(self.spec, job, is_last=is_last)
        items = lengths.list_items(self.spec, job.inputs)
        running = RunningJob(
            job,
            [OPEN] * len(items),
            until_s=self.steps_s + self.spec.time_limit_s,
            is_streamed=not lengths.is_input_list(self.spec, job.inputs),
            details=bool(parameters.get("details")),
            pieces=[[] for _ in items],
            counts=[0] * len(items),
        )
        self.jobs[job.id] = running
        self.leased_until = min(self.leased_until, self._compute_lease_end())
        return JoiningJob(running, items, parameters)

    def _join_items(self, joining: JoiningJob) -> None:
        """Have the stepper read the items of a job. An item that it refuses has its error as the answer."""
        running = joining.running
        for index, item in enumerate(joining.items):
            if running.job.id not in self.jobs:  # it was cancelled meanwhile
                return
            key, seed = (running.job.id, index), (running.job.id.int + index) % SEEDS
            try:
                self.stepper.join(key, item, joining.parameters, seed=seed)
            except Exception as error:
                running.answers[index] = engine_calls.make_job_error(error)

    def _count_step(self, step_s: float) -> None:
        """Count the time of a step.

        A job that has no token yet while others have some waits for their room, as far as is known. The step does not
        count against its time limit.
        """
        tallies.merge_tally(self.tally, {"engine_s": step_s})
        step_s = min(step_s, COUNTED * self.spec.time_limit_s)
        self.steps_s += step_s
        if any(running.generated_token_count for running in self.jobs.values()):
            for running in self.jobs.values():
                running.until_s += 0.0 if running.generated_token_count else step_s

    def _take_progress(self, progress: Sequence[Progress]) -> list[Outcome]:
        """Take in the progress of a step, and return the outcomes of jobs that have ended."""
        for row in progress:
            job_id, index = cast("Key", row.key)
            if running := self.jobs.get(job_id):
                if row.tokens and not running.generated_token_count:
                    self.firsts.append(max(0.0, clock.estimate_now_s() - running.job.created_at.timestamp()))
                    tallies.add_value(self.tally, "first", self.firsts[-1], unit=tallies.UNIT_S)
                running.counts[index] += row.tokens
                running.pieces[index].append(row.text)
                self.tokens += row.tokens
                tallies.merge_tally(self.tally, {"tokens": row.tokens})
                self._stream_text(running, row)
                if row.answer is not OPEN:
                    running.answers[index] = self.stepper.convert_item_answer((job_id, index), row.answer)
        ended = self._end_answered_jobs() + self._end_overdue_jobs()  # a job that has ended in this step is not overdue
        (self.publisher.publish_texts if ended else self.publisher.publish_if_due)()  # before the job's outcome
        return ended

    def _stream_text(self, running: RunningJob, row: Progress) -> None:
        if row.text and running.is_streamed:
            self.publisher.add_text(running.job.id, row.text, tokens=running.generated_token_count, scores=row.scores)

    def _end_answered_jobs(self) -> list[Outcome]:
        ended = [running for running in self.jobs.values() if running.has_ended]
        self.answers += [running.generated_token_count for running in ended if running.generated_token_count]
        for running in ended:
            self._forget_job(running)
        return [make_outcome(self.spec, each.job, each.answers, generated=each.character_count) for each in ended]

    def _end_overdue_jobs(self) -> list[Outcome]:
        """End the jobs that are past the time limit, and return their outcomes.

        Their text ends there. The time that the child process spent between the steps, and waits for the database, do
        not count.
        """
        overdue = [running for running in self.jobs.values() if running.until_s <= self.steps_s]
        begun = [running for running in overdue if running.generated_token_count]
        for running in begun:
            self._cut_job(running)
        outcomes = self._end_answered_jobs()
        for running in overdue:
            if running not in begun:
                self._drop_job(running)
                limit = f"the model's time_limit_s of {self.spec.time_limit_s:g}"
                outcomes.append(
                    make_failure(running.job, errors.TimedOut(f"It ran past {limit} before its first token."))
                )
        return outcomes

    def _cut_job(self, running: RunningJob) -> None:
        """End a job with what it has generated."""
        for index, answer in enumerate(running.answers):
            if answer is OPEN:
                running.answers[index] = self._cut_item(running, index)

    def _cut_item(self, running: RunningJob, index: int) -> Any:
        try:
            last = self.stepper.finish((running.job.id, index))
        except Exception as error:
            return engine_calls.make_job_error(error)
        running.pieces[index].append(last.text)
        self._stream_text(running, last)
        return (
            running.make_cut_answer(index)
            if last.answer is OPEN
            else self.stepper.convert_item_answer((running.job.id, index), last.answer)
        )

    def _forget_job(self, running: RunningJob) -> None:
        del self.jobs[running.job.id]
        self.publisher.forget_job(running.job.id)

    def _drop_job(self, running: RunningJob) -> None:
        self._forget_job(running)
        for index in range(len(running.answers)):
            self.stepper.leave((running.job.id, index))

    def _record_outcomes(self, outcomes: Sequence[Outcome]) -> dict[UUID, str]:
        if not outcomes:
            return {}
        tallies.add_value(self.tally, "batch", max(1, self.most))
        recorded = batch_job_rows.record_outcomes(self.id, outcomes, batch_size=max(1, self.most), beside=self.tally)
        self.tally = {}
        return {outcome.job_id: outcome.error_code for outcome in recorded}

    def _drop_cancelled(self) -> None:
        """Drop the jobs that were cancelled or given back to others, and renew the leases of the rest."""
        if (now := time.monotonic()) - self.looked_at < LOOK_S or not self.jobs:
            return
        self.looked_at = now
        try:
            self._renew_leases()
            held = job_rows.find_running_ids(self.id, self.jobs)
        except Exception as error:
            if not is_away(error):
                raise
            logger.warning("batch=%s its cancelled jobs were not read: %s", self.id, error)
            return
        for running in [running for job_id, running in self.jobs.items() if job_id not in held]:
            logger.info("batch=%s job=%s left: cancelled or given back", self.id, running.job.id)
            self._drop_job(running)

    def renew_leases_for(self, limit_s: float) -> None:
        """Keep its jobs while the child process runs something else first, for `limit_s` at most."""
        try:
            self._renew_leases(limit_s)
        except Exception as error:  # a batch that waits holds up no other
            logger.warning(
                "batch=%s its jobs may be given back while it waits: %s", self.id, logs.describe_error(error)
            )

    def _renew_leases(self, beside_s: float = 0.0) -> None:
        """Renew the leases of its jobs, so that they are not given back.

        The leases also cover `beside_s`, for which the child process does something else.
        """
        lease_end = self._compute_lease_end(beside_s)
        if self.leased_until < lease_end - KEEP_S:
            transitions.extend_lease(self.id, self.jobs, time_limit_s=self.spec.time_limit_s + beside_s)
            self.leased_until = lease_end

    def _compute_lease_end(self, beside_s: float = 0.0) -> float:
        return time.monotonic() + beside_s + self.spec.time_limit_s + transitions.LEASE_MARGIN_S

    def drop_all_jobs(self) -> None:
        """Give up all jobs that have not ended, and keep nothing of them."""
        for running in list(self.jobs.values()):
            self._drop_job(running)
