"""The search for a job that ends its process: a batch that died is run in parts, until the culprit is alone.

The module also keeps the turns of the jobs that nothing may run beside.
"""

import logging
import time
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass

from inference import errors
from inference.connection_retries import Backoff
from inference.telemetry import logs
from inference.worker.calls import ProcessLost, RemoteError
from inference.worker.scheduling.held_jobs import Batch, Bisection, HeldJob

logger = logging.getLogger(__name__)

CRASHES_ALONE = 2  # failures of a lone job: its first process may have been killed from outside, or stopped
MOST_SUSPENSIONS = 5  # tries of a job that do not count, since the worker was stopped meanwhile
MOST_ON_ONE_DEVICE = 6  # tries of a lone job whose device failed, before it fails without a try on another device
RETRY_S, LONGEST_RETRY_S = 1.0, 5.0  # pauses after a failure that may pass, such as a database that is away
STUCK_S, LONGEST_STUCK_S = 5.0, 60.0  # pauses after a wait that ended with the process; each longer by the first


@dataclass(slots=True, eq=False)
class RetryGroup:
    """Jobs that are run again, or alone, in one call of their own."""

    jobs: list[HeldJob]
    not_before: float  # monotonic
    search: Bisection | None = None  # the search that this is a step of

    @property
    def must_run_alone(self) -> bool:
        """True if nothing may run beside the group."""
        return self.jobs[0].item.alone

    @property
    def turn_order(self) -> tuple[bool, tuple[int, float, float]]:
        """The order in which groups run alone: first the jobs that this worker has claimed, whose lease runs out."""
        held = self.jobs[0]
        return not held.takes_over, held.item.order


class Isolation:
    """The parts of batches that run again ahead of everything else, and the jobs that must run alone in their turn."""

    def __init__(self, *, devices: int = 1) -> None:
        self.parts: list[RetryGroup] = []
        self.devices = devices  # number of this worker's devices
        self.backoff = Backoff(first_s=RETRY_S, longest_s=LONGEST_RETRY_S)
        self._owed_s = 0.0  # the time that others are owed: as long as the last job that ran alone took
        self.others_until = 0.0  # monotonic: until when the others have their turn

    def __len__(self) -> int:
        """Return the number of jobs that wait in parts."""
        return sum(len(part.jobs) for part in list(self.parts))

    def find_next_group(self, models: Container[str]) -> RetryGroup | None:
        """Return the first part of these models that may run now beside others, if any."""
        return next((part for part in self._list_due_parts(models) if not part.must_run_alone), None)

    def find_next_lone_group(
        self, models: Container[str], heads: Collection[tuple[int, float, float]]
    ) -> RetryGroup | None:
        """Return the part that must run alone and whose turn it is, if any.

        A part whose job this worker has claimed goes first. Any other must precede `heads`, the orders of the first job
        of each queue, and waits while the other jobs have their turn.
        """
        due = [part for part in self._list_due_parts(models) if part.must_run_alone]
        first = min(due, key=lambda part: part.turn_order, default=None)
        if first is None or first.jobs[0].takes_over:
            return first
        if time.monotonic() < self.others_until or self.find_next_group(models):
            return None
        return None if heads and (self._owed_s or first.turn_order[1] > min(heads)) else first

    def remove_group(self, part: RetryGroup) -> None:
        """Remove a part that is run now."""
        self.parts.remove(part)

    def _list_due_parts(self, models: Container[str]) -> list[RetryGroup]:
        now = time.monotonic()
        return [part for part in self.parts if part.not_before <= now and part.jobs[0].model in models]

    def hold_lone_job(self, held: HeldJob) -> None:
        """Hold a job back until it can run alone."""
        self.parts.append(RetryGroup(jobs=[held], not_before=0.0))

    def forget_job(self, held: HeldJob) -> None:
        """Forget the part of a job that is held no more. A part that it shares with others drops it when it is next."""
        self.parts = [part for part in self.parts if part.jobs != [held]]

    def begin_turn_of_others(self, batch: Batch) -> None:
        """Note that a batch was sent. The turn of the jobs that run beside others begins with the first of them."""
        if self._owed_s and not batch.must_run_alone:
            self.others_until, self._owed_s = time.monotonic() + self._owed_s, 0.0

    def record_time_owed_others(self, batch: Batch) -> None:
        if batch.must_run_alone and batch.has_begun:
            self._owed_s = time.monotonic() - batch.begun_at

    def find_next_due_in_s(self, models: Container[str]) -> float | None:
        now = time.monotonic()
        return min((part.not_before - now for part in self.parts if part.jobs[0].model in models), default=None)

    def retry_same_batch(self, batch: Batch, after_s: float = 0.0) -> None:
        """Run a batch again as it is."""
        self._add_group(list(batch.jobs), batch.search, after_s)

    def retry_joining_jobs(self, jobs: Sequence[HeldJob]) -> None:
        """Run jobs again that were to join an open batch in a call that was forgotten."""
        self._add_group(list(jobs))

    def postpone_joining_jobs(self, jobs: Sequence[HeldJob]) -> None:
        """Run jobs later that were to join an open batch and cannot yet."""
        if jobs:
            self._add_group(list(jobs), after_s=self.backoff.take_next_pause_s())

    def note_success(self, batch: Batch) -> None:
        self.backoff.reset()
        if batch.search:
            batch.search.narrow_suspects(batch.begun, died=False)
            self._continue_search(batch.search)

    def retry_unbegun_batch(self, batch: Batch, cause: BaseException) -> None:
        """Run a batch again later that could not begin."""
        after_s = self.backoff.take_next_pause_s()
        logger.error("batch=%s not begun, tried again in %.1f s: %s", batch.id, after_s, logs.describe_error(cause))
        self.retry_same_batch(batch, after_s)

    def retry_blocked_batch(self, batch: Batch, cause: BaseException) -> None:
        """Run a batch again later that waited for something else than its engine, such as a lock of the database.

        No job is blamed. A job that is stuck for ever ends as lost: its lease runs out with each try.
        """
        for held in batch.jobs:
            held.times_stuck += 1
        after_s = min(STUCK_S * max(held.times_stuck for held in batch.jobs), LONGEST_STUCK_S)
        logger.error("batch=%s killed, tried again in %.0f s: %s", batch.id, after_s, logs.describe_error(cause))
        self.retry_same_batch(batch, after_s)

    def retry_after_worker_suspension(self, batch: Batch, cause: BaseException) -> None:
        """Run a batch again whose time limit ended while the worker itself was stopped.

        No job is blamed for the first `MOST_SUSPENSIONS` times.
        """
        if any(held.times_suspended >= MOST_SUSPENSIONS for held in batch.jobs):
            self.search_culprit(batch, cause)
            return
        for held in batch.jobs:
            held.times_suspended += 1
        why = logs.describe_error(cause)
        logger.error("batch=%s lost, the worker was stopped for %.1f s meanwhile: %s", batch.id, batch.suspended_s, why)
        self.retry_same_batch(batch)

    def run_halves(self, batch: Batch, cause: BaseException, after_s: float = 0.0) -> None:
        """Run the halves of a batch, and the jobs that its search has not run yet.

        Perhaps only one of its jobs is at fault.
        """
        if batch.search:
            self._add_group([held for held in batch.search.suspects if held not in batch.jobs])
            self._add_group(batch.search.aside)
        if not self._suspect_if_alone(batch, cause, after_s):
            why = logs.describe_error(cause)
            logger.error("batch=%s of %d lost, running its halves apart: %s", batch.id, len(batch.jobs), why)
            middle = len(batch.jobs) // 2
            self._add_group(batch.jobs[:middle], after_s=after_s)
            self._add_group(batch.jobs[middle:], after_s=after_s)

    def search_culprit(self, batch: Batch, cause: BaseException) -> None:
        """Search for the job of a batch that ended the batch's process."""
        if search := batch.search:
            search.narrow_suspects(batch.jobs, died=True)
        alone = self._suspect_if_alone(batch, cause)
        if not alone:
            why = logs.describe_error(cause)
            logger.error("batch=%s of %d lost, looking for the culprit: %s", batch.id, len(batch.jobs), why)
            self._continue_search(search or Bisection(suspects=batch.jobs))
        elif search:
            self._add_group(search.aside)

    def blame_job(self, culprit: HeldJob, batch: Batch, cause: BaseException) -> None:
        """Blame the job that the engine was busy with alone when the batch's process died.

        The others run again together, and are not blamed.
        """
        search = batch.search
        others = [*search.suspects, *search.aside] if search else batch.jobs
        self._add_group([held for held in others if held is not culprit])
        self._condemn_or_retry(culprit, batch, cause)

    def _continue_search(self, search: Bisection) -> None:
        if len(search.suspects) > 1:
            self._add_group(search.select_next_half(), search)
        else:
            self._add_group(search.suspects)
            self._add_group(search.aside)

    def _add_group(self, jobs: list[HeldJob], search: Bisection | None = None, after_s: float = 0.0) -> None:
        if jobs:
            self.parts.append(RetryGroup(jobs=jobs, not_before=time.monotonic() + after_s, search=search))

    def _suspect_if_alone(self, batch: Batch, cause: BaseException, after_s: float = 0.0) -> bool:
        """Return True if the batch was a single job, which is then condemned or tried once more."""
        if len(batch.jobs) > 1:
            return False
        self._condemn_or_retry(batch.jobs[0], batch, cause, after_s)
        return True

    def _condemn_or_retry(self, held: HeldJob, batch: Batch, cause: BaseException, after_s: float = 0.0) -> None:
        """Condemn a job that a process may have died of, or try it once more."""
        held.crashes_alone += 1
        held.verdict = _find_verdict(held, cause, devices=self.devices)
        if isinstance(cause, RemoteError):
            held.raised, held.trace = cause.raised, cause.trace
        fate = f"fails as {held.verdict}" if held.verdict else "tried once more"
        logger.error("batch=%s job=%s lost alone, %s: %s", batch.id, held.item.id, fate, logs.describe_error(cause))
        self._add_group([held], after_s=after_s)


def _find_verdict(held: HeldJob, cause: BaseException, *, devices: int) -> str:
    """Return the error code of a job whose process died with it alone, or "" for one more try."""
    if held.crashes_alone < CRASHES_ALONE:
        return ""
    if isinstance(cause, errors.DeviceFailed):
        may_be_another = len(held.failed_on) < min(2, devices) and held.crashes_alone < MOST_ON_ONE_DEVICE
        return "" if may_be_another else errors.DeviceFailed.code
    if not isinstance(cause, ProcessLost):
        return errors.JobFailure.code
    return errors.TimedOut.code if cause.is_past_limit else errors.Crashed.code
