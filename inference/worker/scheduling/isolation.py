"""Finding the job that kills its process: a batch that died is run in parts, until the culprit is alone.

And the turns of those jobs that nothing may run beside.
"""

import logging
import time
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass

from billiard.exceptions import Terminated, WorkerLostError

from inference import errors
from inference.failures import Pauses
from inference.telemetry import logs
from inference.worker.calls import RemoteError
from inference.worker.scheduling.inflight import Batch, Bisection, HeldJob

logger = logging.getLogger(__name__)

CRASHES_ALONE = 2  # a lone job whose process died may have been killed from outside, or stopped: one more try
MOST_PAUSES = 5  # tries of a job that do not count, as the worker was stopped meanwhile
MOST_ON_ONE_DEVICE = 6  # tries of a lone job whose device failed, before it fails though no other device had it
RETRY_S, LONGEST_RETRY_S = 1.0, 5.0  # after a failure that may pass, such as a database that is away
STUCK_S, LONGEST_STUCK_S = 5.0, 60.0  # longer by the first each time, after a wait that ended with the process


@dataclass(slots=True, eq=False)
class RetryGroup:
    """Jobs that are run again, as one call of their own."""

    jobs: list[HeldJob]
    not_before: float  # monotonic
    search: Bisection | None = None  # that this is a step of

    @property
    def is_alone(self) -> bool:
        """Whether nothing may run beside it."""
        return self.jobs[0].item.alone

    @property
    def turn(self) -> tuple[bool, tuple[int, float, float]]:
        """In which order they run alone: first what this worker has claimed, whose lease runs out."""
        held = self.jobs[0]
        return not held.takes_over, held.item.order


class Isolation:
    """Parts of batches that are run again, ahead of everything else; and what must run alone, in its turn."""

    def __init__(self, *, devices: int = 1) -> None:
        self.parts: list[RetryGroup] = []
        self.devices = devices  # of this worker
        self.pauses = Pauses(first_s=RETRY_S, longest_s=LONGEST_RETRY_S)
        self._owed_s = 0.0  # a turn of all others, as long as that of the last that ran alone
        self.others_until = 0.0  # monotonic

    def __len__(self) -> int:
        """Jobs that wait for their part."""
        return sum(len(part.jobs) for part in list(self.parts))

    def next(self, models: Container[str]) -> RetryGroup | None:
        """The first part of these models that may run now beside others."""
        return next((part for part in self._due(models) if not part.is_alone), None)

    def next_alone(self, models: Container[str], heads: Collection[tuple[int, float, float]]) -> RetryGroup | None:
        """Of those that must run alone the one whose turn it is, before all that waits: the `heads` of the queues."""
        due = [part for part in self._due(models) if part.is_alone]
        first = min(due, key=lambda part: part.turn, default=None)
        if first is None or first.jobs[0].takes_over:
            return first
        if time.monotonic() < self.others_until or self.next(models):
            return None
        return None if heads and (self._owed_s or first.turn[1] > min(heads)) else first

    def _due(self, models: Container[str]) -> list[RetryGroup]:
        now = time.monotonic()
        return [part for part in self.parts if part.not_before <= now and part.jobs[0].model in models]

    def wait_alone(self, held: HeldJob) -> None:
        """Until nothing runs."""
        self.parts.append(RetryGroup(jobs=[held], not_before=0.0))

    def forget(self, held: HeldJob) -> None:
        """A part that it shares finds out as it is next."""
        self.parts = [part for part in self.parts if part.jobs != [held]]

    def sent(self, batch: Batch) -> None:
        """The turn of those that run beside others begins with the first of them."""
        if self._owed_s and not batch.is_alone:
            self.others_until, self._owed_s = time.monotonic() + self._owed_s, 0.0

    def ended(self, batch: Batch) -> None:
        if batch.is_alone and batch.has_begun:
            self._owed_s = time.monotonic() - batch.begun_at

    def due_in_s(self, models: Container[str]) -> float | None:
        now = time.monotonic()
        return min((part.not_before - now for part in self.parts if part.jobs[0].model in models), default=None)

    def again(self, batch: Batch, after_s: float = 0.0) -> None:
        """One of several engine calls in as many parts."""
        for jobs in batch.by_engine_call():
            self._add(jobs, batch.search, after_s)

    def rejoin(self, jobs: Sequence[HeldJob]) -> None:
        """They were to join an open batch, and its call was forgotten."""
        self._add(list(jobs))

    def put_off(self, jobs: Sequence[HeldJob]) -> None:
        """They were to join an open batch, and cannot yet."""
        if jobs:
            self._add(list(jobs), after_s=self.pauses.next_s())

    def succeeded(self, batch: Batch) -> None:
        self.pauses.reset()
        if batch.search:
            batch.search.narrow(batch.begun, died=False)
            self._go_on(batch.search)

    def retry(self, batch: Batch, cause: BaseException) -> None:
        """Nothing of it has begun, and later it may."""
        after_s = self.pauses.next_s()
        logger.error("batch=%s not begun, tried again in %.1f s: %s", batch.id, after_s, logs.said(cause))
        self.again(batch, after_s)

    def was_stuck(self, batch: Batch, cause: BaseException) -> None:
        """It waited for something else than its engine, such as a lock of the database: no job is blamed. What is
        stuck for ever ends as lost: with each try its lease runs out."""
        for held in batch.jobs:
            held.times_stuck += 1
        after_s = min(STUCK_S * max(held.times_stuck for held in batch.jobs), LONGEST_STUCK_S)
        logger.error("batch=%s killed, tried again in %.0f s: %s", batch.id, after_s, logs.said(cause))
        self.again(batch, after_s)

    def was_paused(self, batch: Batch, cause: BaseException) -> None:
        """Run a batch again whose limit ended while the worker itself was stopped: no job is blamed, a few times."""
        if any(held.times_paused >= MOST_PAUSES for held in batch.jobs):
            self.died(batch, cause)
            return
        for held in batch.jobs:
            held.times_paused += 1
        why = logs.said(cause)
        logger.error("batch=%s lost, the worker was stopped for %.1f s meanwhile: %s", batch.id, batch.paused_s, why)
        self.again(batch)

    def halve(self, batch: Batch, cause: BaseException, after_s: float = 0.0) -> None:
        """Run its halves, and what its search has not run yet: perhaps one of its jobs only is at fault."""
        if batch.shares:
            self._apart(batch, cause, after_s)
            return
        if batch.search:
            self._add([held for held in batch.search.suspects if held not in batch.jobs])
            self._add(batch.search.aside)
        if not self._died_alone(batch, cause, after_s):
            why = logs.said(cause)
            logger.error("batch=%s of %d lost, running its halves apart: %s", batch.id, len(batch.jobs), why)
            middle = len(batch.jobs) // 2
            self._add(batch.jobs[:middle], after_s=after_s)
            self._add(batch.jobs[middle:], after_s=after_s)

    def died(self, batch: Batch, cause: BaseException) -> None:
        """Its process died with it, of one of its jobs."""
        if batch.shares:
            self._apart(batch, cause)
            return
        if search := batch.search:
            search.narrow(batch.jobs, died=True)
        alone = self._died_alone(batch, cause)
        if not alone:
            why = logs.said(cause)
            logger.error("batch=%s of %d lost, looking for the culprit: %s", batch.id, len(batch.jobs), why)
            self._go_on(search or Bisection(suspects=batch.jobs))
        elif search:
            self._add(search.aside)

    def died_of(self, culprit: HeldJob, batch: Batch, cause: BaseException) -> None:
        """Its process died with it as it was busy with this job alone: the others run again together, unblamed."""
        search = batch.search
        others = [*search.suspects, *search.aside] if search else batch.jobs
        self._add([held for held in others if held is not culprit])
        self._suspect(culprit, batch, cause)

    def _apart(self, batch: Batch, cause: BaseException, after_s: float = 0.0) -> None:
        """What they shared is over: a culprit is searched for among those that the engine had at once."""
        why = logs.said(cause)
        logger.error("batch=%s of %d lost, running its engine calls apart: %s", batch.id, len(batch.jobs), why)
        self.again(batch, after_s)

    def _go_on(self, search: Bisection) -> None:
        if len(search.suspects) > 1:
            self._add(search.tested(), search)
        else:
            self._add(search.suspects)
            self._add(search.aside)

    def _add(self, jobs: list[HeldJob], search: Bisection | None = None, after_s: float = 0.0) -> None:
        if jobs:
            self.parts.append(RetryGroup(jobs=jobs, not_before=time.monotonic() + after_s, search=search))

    def _died_alone(self, batch: Batch, cause: BaseException, after_s: float = 0.0) -> bool:
        """Whether it was one job; that is condemned then, or tried once more."""
        if len(batch.jobs) > 1:
            return False
        self._suspect(batch.jobs[0], batch, cause, after_s)
        return True

    def _suspect(self, held: HeldJob, batch: Batch, cause: BaseException, after_s: float = 0.0) -> None:
        """Condemn the one job that a process died of, or try it once more."""
        held.crashes_alone += 1
        held.verdict = _verdict(batch, held, cause, devices=self.devices)
        if isinstance(cause, RemoteError):
            held.raised, held.trace = cause.raised, cause.trace
        fate = f"fails as {held.verdict}" if held.verdict else "tried once more"
        logger.error("batch=%s job=%s lost alone, %s: %s", batch.id, held.item.id, fate, logs.said(cause))
        self._add([held], after_s=after_s)


def _verdict(batch: Batch, held: HeldJob, cause: BaseException, *, devices: int) -> str:
    """The code that a job fails with whose process died with it alone, or nothing for one more try."""
    if held.crashes_alone < CRASHES_ALONE:
        return ""
    if batch.timed_out:
        return errors.TimedOut.code
    if isinstance(cause, errors.DeviceFailed):
        may_be_another = len(held.failed_on) < min(2, devices) and held.crashes_alone < MOST_ON_ONE_DEVICE
        return "" if may_be_another else errors.DeviceFailed.code
    if not isinstance(cause, WorkerLostError | Terminated):
        return errors.JobError.code
    return errors.Crashed.code
