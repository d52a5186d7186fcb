"""In a pool child: a batch of a model that generates step by step, which jobs join while others are being answered.

Such a batch is open: its call comes back after some steps, and the next call of the same batch goes on from there. Its
jobs are claimed as they join and recorded as they end; each has the model's time limit for itself.
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
from inference.engines.runtime import isolate
from inference.engines.stepper import OPEN, Progress, Stepper
from inference.failures import is_away
from inference.figures import tallies
from inference.figures.tallies import Tally
from inference.store import rows, transitions
from inference.store.transitions import Claimed, Outcome
from inference.telemetry import logs
from inference.worker.calls import BatchReport, ChildCommand, SharedState
from inference.worker.child import claims
from inference.worker.child.generation.limited_stepper import Key, LimitedStepper
from inference.worker.child.generation.text_publisher import TextPublisher
from inference.worker.child.outcomes import failed, outcome_of

logger = logging.getLogger(__name__)

SLICE_S = 0.5  # of steps in one call
LOOK_S = 0.25  # between two looks at the rows for those that were cancelled
KEEP_S = 10.0  # between two renewals of the leases, at least: less than what these have beyond the time limit
COUNTED = 0.25  # of the time limit, that one step counts at most: for longer its process may have been stopped
SEEDS = 2**63


@dataclass(slots=True, eq=False)
class Running:
    """A job of an open batch."""

    job: Claimed
    answers: list[Any]  # of its items, OPEN until they have ended
    until_s: float  # of its batch's steps: its time limit
    is_told: bool  # as it comes: of a list nobody could say which text it is
    details: bool  # are asked for
    pieces: list[list[str]]  # of the text of each item, as far as it was told
    counts: list[int]  # of the tokens of each item that are generated

    @property
    def tokens(self) -> int:
        return sum(self.counts)

    @property
    def characters(self) -> int:
        """Return how many characters were generated."""
        return sum(len(piece) for pieces in self.pieces for piece in pieces)

    @property
    def has_ended(self) -> bool:
        return all(answer is not OPEN for answer in self.answers)

    def cut(self, index: int) -> list[dict[str, Any]]:
        """An answer out of what an item has told, where its model has none before its end."""
        details = {"details": {"finish_reason": "length", "generated_tokens": self.counts[index]}}
        return [{"generated_text": "".join(self.pieces[index]), **(details if self.details else {})}]


@dataclass(slots=True, eq=False)
class Joining:
    """A job that was let in, and has not been read."""

    running: Running
    items: Sequence[Any]
    parameters: dict[str, Any]


@dataclass(slots=True, eq=False)
class OpenBatch:
    """`shared` tells what the main process wants while a call runs."""

    id: UUID
    spec: ModelSpec
    engine: InitVar[Stepper]
    shared: SharedState
    stepper: LimitedStepper = field(init=False)
    jobs: dict[UUID, Running] = field(default_factory=dict)  # that have not ended
    most: int = 0  # rows that ran together
    steps_s: float = 0.0  # that all its steps took
    looked_at: float = field(default_factory=time.monotonic)
    leased_until: float = math.inf  # monotonic: the first of the leases
    tokens: int = 0  # since the last report
    firsts: list[float] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)  # tokens of those that ended, since the last report
    tally: Tally = field(default_factory=dict)  # what the figures tell, since the last record
    teller: TextPublisher = field(init=False)

    def __post_init__(self, engine: Stepper) -> None:
        self.stepper = LimitedStepper(engine, self.spec.time_limit_s, self.shared)
        self.teller = TextPublisher(self.id)

    def run(self, claimed: Sequence[Claimed], *, is_last: bool) -> BatchReport:
        """Some steps: until somebody has ended, the main process asks for it, or the slice is over."""
        began_at = time.monotonic()
        codes: dict[UUID, str] = {}
        before_s, steps, put_off = self.steps_s, 0, []
        outcomes: list[Outcome] = []
        joining: list[Joining] = []
        for job in claimed:
            try:
                joining.append(self._let_in(job, is_last=is_last))
            except errors.NotYet:
                put_off.append(job.id)
            except errors.InvalidInput as error:
                outcomes.append(failed(job, error))
        for each in joining:
            self._drop_cancelled()  # and keep all of them, as each may take as long as the limit
            self._join(each)
        outcomes += self._ended()
        while True:
            codes |= self._record(outcomes)
            self._drop_cancelled()
            if not self.jobs or (steps and self._is_over(began_at, has_news=bool(codes or put_off))):
                break
            self.most = max(self.most, sum(running.answers.count(OPEN) for running in self.jobs.values()))
            step_at = time.monotonic()
            progress = self.stepper.step()
            self._count(time.monotonic() - step_at)
            steps += 1
            outcomes = self._settle(progress)
        self.teller.tell()
        tokens, self.tokens, firsts, self.firsts = self.tokens, 0, self.firsts, []
        answers, self.answers = self.answers, []
        engine_s = self.steps_s - before_s
        return BatchReport(
            errors=codes, engine_s=engine_s, overhead_s=time.monotonic() - began_at - engine_s, size=self.most,
            left=frozenset(self.jobs), put_off=frozenset(put_off), room=self._room,
            capacity=self.stepper.capacity, cut_at=self.stepper.context,
            tokens=tokens, firsts_s=tuple(firsts), answers=tuple(answers),
        )  # fmt: skip

    @property
    def _room(self) -> Room:
        rows, most = len(self.stepper), self.spec.max_batch_size
        return Room(rows=most - rows, tokens=self.stepper.room, longest=self.stepper.longest, others=rows)

    def _is_over(self, began_at: float, *, has_news: bool) -> bool:
        command = self.shared.command
        if command == ChildCommand.DRAIN:
            return False
        return has_news or command == ChildCommand.YIELD or time.monotonic() - began_at > SLICE_S

    def _let_in(self, job: Claimed, *, is_last: bool) -> Joining:
        """Make a job one of the batch, whose lease is kept from now on. Raises `InvalidInput`, and `NotYet`."""
        parameters = claims.parameters_of(self.spec, job, is_last=is_last)
        items = lengths.items(self.spec, job.inputs)
        running = Running(
            job, [OPEN] * len(items), until_s=self.steps_s + self.spec.time_limit_s,
            is_told=not lengths.is_list(self.spec, job.inputs), details=bool(parameters.get("details")),
            pieces=[[] for _ in items], counts=[0] * len(items),
        )  # fmt: skip
        self.jobs[job.id] = running
        self.leased_until = min(self.leased_until, self._lease_end())
        return Joining(running, items, parameters)

    def _join(self, joining: Joining) -> None:
        """Have the engine read what a job asks. One that it refuses has its answer then."""
        running = joining.running
        for index, item in enumerate(joining.items):
            if running.job.id not in self.jobs:  # cancelled meanwhile
                return
            key, seed = (running.job.id, index), (running.job.id.int + index) % SEEDS
            try:
                self.stepper.join(key, item, joining.parameters, seed=seed)
            except Exception as error:
                running.answers[index] = isolate.failure(error)

    def _count(self, step_s: float) -> None:
        """Whoever has no token yet while others have waits for their room, for all that is known: it does not count."""
        tallies.add(self.tally, {"engine_s": step_s})
        step_s = min(step_s, COUNTED * self.spec.time_limit_s)
        self.steps_s += step_s
        if any(running.tokens for running in self.jobs.values()):
            for running in self.jobs.values():
                running.until_s += 0.0 if running.tokens else step_s

    def _settle(self, progress: Sequence[Progress]) -> list[Outcome]:
        """What the step brought."""
        for told in progress:
            job_id, index = cast("Key", told.key)
            if running := self.jobs.get(job_id):
                if told.tokens and not running.tokens:
                    self.firsts.append(max(0.0, clock.time_s() - running.job.created_at.timestamp()))
                    tallies.observe(self.tally, "first", self.firsts[-1], unit=tallies.UNIT_S)
                running.counts[index] += told.tokens
                running.pieces[index].append(told.text)
                self.tokens += told.tokens
                tallies.add(self.tally, {"tokens": told.tokens})
                self._tell(running, told.text)
                if told.answer is not OPEN:
                    running.answers[index] = self.stepper.read((job_id, index), told.answer)
        ended = self._ended() + self._overdue()  # what has ended in this step is not late
        (self.teller.tell if ended else self.teller.tell_soon)()  # the text of a job comes before its end
        return ended

    def _tell(self, running: Running, text: str) -> None:
        if text and running.is_told:
            self.teller.add(running.job.id, text, tokens=running.tokens)

    def _ended(self) -> list[Outcome]:
        ended = [running for running in self.jobs.values() if running.has_ended]
        self.answers += [running.tokens for running in ended if running.tokens]
        for running in ended:
            self._forget(running)
        return [outcome_of(self.spec, each.job, each.answers, generated=each.characters) for each in ended]

    def _overdue(self) -> list[Outcome]:
        """Past the limit: their text ends there. What their child did between the steps, and waits for the database, do
        not count."""
        overdue = [running for running in self.jobs.values() if running.until_s <= self.steps_s]
        begun = [running for running in overdue if running.tokens]
        for running in begun:
            self._finish(running)
        outcomes = self._ended()
        for running in overdue:
            if running not in begun:
                self._leave(running)
                limit = f"the model's time_limit_s of {self.spec.time_limit_s:g}"
                outcomes.append(failed(running.job, errors.TimedOut(f"It ran past {limit} before its first token.")))
        return outcomes

    def _finish(self, running: Running) -> None:
        """With what it has generated."""
        for index, answer in enumerate(running.answers):
            if answer is OPEN:
                running.answers[index] = self._finished(running, index)

    def _finished(self, running: Running, index: int) -> Any:
        try:
            last = self.stepper.finish((running.job.id, index))
        except Exception as error:
            return isolate.failure(error)
        running.pieces[index].append(last.text)
        self._tell(running, last.text)
        return running.cut(index) if last.answer is OPEN else self.stepper.read((running.job.id, index), last.answer)

    def _forget(self, running: Running) -> None:
        del self.jobs[running.job.id]
        self.teller.forget(running.job.id)

    def _leave(self, running: Running) -> None:
        self._forget(running)
        for index in range(len(running.answers)):
            self.stepper.leave((running.job.id, index))

    def _record(self, outcomes: Sequence[Outcome]) -> dict[UUID, str]:
        if not outcomes:
            return {}
        tallies.observe(self.tally, "batch", max(1, self.most))
        recorded = claims.record(self.id, outcomes, batch_size=max(1, self.most), beside=self.tally)
        self.tally = {}
        return {outcome.job_id: outcome.error_code for outcome in recorded}

    def _drop_cancelled(self) -> None:
        """And what was given back to others."""
        if (now := time.monotonic()) - self.looked_at < LOOK_S or not self.jobs:
            return
        self.looked_at = now
        try:
            self._keep()
            held = rows.held(self.id, self.jobs)
        except Exception as error:
            if not is_away(error):
                raise
            logger.warning("batch=%s its cancelled jobs were not read: %s", self.id, error)
            return
        for running in [running for job_id, running in self.jobs.items() if job_id not in held]:
            logger.info("batch=%s job=%s left: cancelled or given back", self.id, running.job.id)
            self._leave(running)

    def stand_by(self, limit_s: float) -> None:
        """For so long at most: its child runs something else first."""
        try:
            self._keep(limit_s)
        except Exception as error:  # what waits holds up nobody
            logger.warning("batch=%s its jobs may be given back while it waits: %s", self.id, logs.said(error))

    def _keep(self, beside_s: float = 0.0) -> None:
        """Its jobs, from being given back; also while its child does something else for `beside_s`."""
        lease_end = self._lease_end(beside_s)
        if self.leased_until < lease_end - KEEP_S:
            transitions.keep(self.id, self.jobs, time_limit_s=self.spec.time_limit_s + beside_s)
            self.leased_until = lease_end

    def _lease_end(self, beside_s: float = 0.0) -> float:
        return time.monotonic() + beside_s + self.spec.time_limit_s + transitions.LEASE_MARGIN_S

    def close(self) -> None:
        """Nothing is kept of what has not ended."""
        for running in list(self.jobs.values()):
            self._leave(running)
