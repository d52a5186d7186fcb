"""Finding the job that kills its process: a batch that died is run in parts, until the culprit is alone."""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import dataclass

from billiard.exceptions import Terminated, WorkerLostError

from inference import clock, errors
from inference.failures import Pauses
from inference.worker.held import Batch, Held, Search

logger = logging.getLogger(__name__)

CRASHES_ALONE = 2  # a lone job whose process died may have been killed from outside: one more try
RETRY_S, LONGEST_RETRY_S = 1.0, 5.0  # after a failure that may pass, such as a database that is away


@dataclass(slots=True, eq=False)
class Part:
    """Jobs that are run again, as one call of their own."""

    jobs: list[Held]
    not_before: float
    search: Search | None = None  # that this is a step of


class Isolation:
    """Parts of batches that are run again, ahead of everything else."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.pauses = Pauses(first_s=RETRY_S, longest_s=LONGEST_RETRY_S)

    def __len__(self) -> int:
        """Jobs that wait to be run again."""
        return sum(len(part.jobs) for part in list(self.parts))

    def next(self, now: float, models: Container[str]) -> Part | None:
        """The first part of these models that may run now, taken out."""
        for index, part in enumerate(self.parts):
            if part.not_before <= now and part.jobs[0].model in models:
                return self.parts.pop(index)
        return None

    def due_at(self, models: Container[str]) -> float | None:
        return min((part.not_before for part in self.parts if part.jobs[0].model in models), default=None)

    def again(self, batch: Batch, after_s: float = 0.0) -> None:
        self._add(batch.jobs, batch.search, after_s)

    def succeeded(self, batch: Batch) -> None:
        self.pauses.reset()
        if batch.search:
            batch.search.narrow(batch.jobs, died=False)
            self._go_on(batch.search)

    def retry(self, batch: Batch, cause: BaseException) -> None:
        """Nothing of it has begun, and later it may."""
        after_s = self.pauses.next_s()
        logger.error("batch=%s not begun, tried again in %.1f s: %s", batch.id, after_s, cause)
        self.again(batch, after_s)

    def broke(self, batch: Batch, cause: BaseException) -> None:
        """By something that nobody foresaw, and perhaps by one of its jobs only. It ends, whatever it was."""
        self._apart(batch, cause, after_s=RETRY_S)

    def device_failed(self, batch: Batch, cause: BaseException) -> None:
        """One bad input can put a device into a sticky error state, so the batch is run in halves. Whether the device
        itself is lost is not told by jobs, but by the start of the next process."""
        self._apart(batch, cause)

    def _apart(self, batch: Batch, cause: BaseException, after_s: float = 0.0) -> None:
        """Its halves, and what its search has not run yet."""
        if batch.search:
            self._add([held for held in batch.search.suspects if held not in batch.jobs])
            self._add(batch.search.aside)
        if not self._died_alone(batch, cause, after_s):
            logger.error("batch=%s of %d lost, running its halves apart: %r", batch.id, len(batch.jobs), cause)
            middle = len(batch.jobs) // 2
            self._add(batch.jobs[:middle], after_s=after_s)
            self._add(batch.jobs[middle:], after_s=after_s)

    def died(self, batch: Batch, cause: BaseException) -> None:
        """Its process died with it, of one of its jobs."""
        if search := batch.search:
            search.narrow(batch.jobs, died=True)
        alone = self._died_alone(batch, cause)
        if not alone:
            logger.error("batch=%s of %d lost, looking for the culprit: %s", batch.id, len(batch.jobs), cause)
            self._go_on(search or Search(suspects=batch.jobs))
        elif search:
            self._add(search.aside)

    def _go_on(self, search: Search) -> None:
        if len(search.suspects) > 1:
            self._add(search.tested(), search)
        else:
            self._add(search.suspects)
            self._add(search.aside)

    def _add(self, jobs: list[Held], search: Search | None = None, after_s: float = 0.0) -> None:
        if jobs:
            self.parts.append(Part(jobs=jobs, not_before=clock.time_s() + after_s, search=search))

    def _died_alone(self, batch: Batch, cause: BaseException, after_s: float = 0.0) -> bool:
        """Whether it was one job; that is condemned then, or tried once more."""
        if len(batch.jobs) > 1:
            return False
        (held,) = batch.jobs
        held.crashes_alone += 1
        held.verdict = _verdict(batch, held, cause)
        fate = f"fails as {held.verdict}" if held.verdict else "tried once more"
        logger.error("batch=%s job=%s lost alone, %s: %r", batch.id, held.item.id, fate, cause)
        self._add([held], after_s=after_s)
        return True


def _verdict(batch: Batch, held: Held, cause: BaseException) -> str:
    """The code that a job fails with whose process died with it alone, or nothing for one more try."""
    if batch.timed_out:
        return errors.TimedOut.code
    if held.crashes_alone < CRASHES_ALONE:
        return ""
    if isinstance(cause, errors.DeviceFailed):
        return errors.DeviceFailed.code
    if batch.stuck or not isinstance(cause, WorkerLostError | Terminated):
        return errors.JobError.code
    return errors.Crashed.code
