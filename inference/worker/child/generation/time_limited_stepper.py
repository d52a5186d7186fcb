"""A stepper each of whose calls runs within the time limit."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from inference.engines.runtime import engine_calls
from inference.engines.stepper import Progress, Stepper
from inference.worker.calls import NO_JOB, SharedState
from inference.worker.child.time_limit import end_process_after

Key = tuple[UUID, int]  # of a row: the id of its job, and the index of its item in that job


class TimeLimitedStepper:
    """A `Stepper` each of whose calls ends the process if it runs past the time limit.

    A stepper is called only through this class, as it may be a user's own code and may never return. While a call is
    about one job, the main process can read which one. If the process ends then, that job is to blame.
    """

    def __init__(self, stepper: Stepper, limit_s: float, shared: SharedState) -> None:
        """Limit each call of `stepper` to `limit_s`. The main process reads `shared`."""
        self._stepper, self._limit_s, self._shared = stepper, limit_s, shared

    @contextlib.contextmanager
    def _limit_call(self, job: UUID | None = None) -> Iterator[None]:
        self._shared.job[:] = job.bytes if job else NO_JOB
        try:
            with end_process_after(self._limit_s):
                yield
        finally:
            self._shared.job[:] = NO_JOB

    def join(self, key: Key, value: object, parameters: Mapping[str, Any], *, seed: int) -> None:
        with self._limit_call(key[0]):
            self._stepper.join(key, value, parameters, seed=seed)

    def leave(self, key: Key) -> None:
        with self._limit_call(key[0]):
            self._stepper.leave(key)

    def finish(self, key: Key) -> Progress:
        with self._limit_call(key[0]):
            return self._stepper.finish(key)

    def step(self) -> list[Progress]:
        with self._limit_call():
            return self._stepper.step()

    def convert_item_answer(self, key: Key, answer: object) -> Any:
        """Return an answer as it is stored, or the error if it is one."""
        with self._limit_call(key[0]):
            return engine_calls.convert_item_answer(answer)

    def __len__(self) -> int:
        with self._limit_call():
            return len(self._stepper)

    @property
    def room(self) -> int:
        with self._limit_call():
            return self._stepper.room

    @property
    def tokens_per_row(self) -> int:
        with self._limit_call():
            return self._stepper.tokens_per_row

    @property
    def capacity(self) -> int:
        with self._limit_call():
            return self._stepper.capacity

    @property
    def context(self) -> int | None:
        with self._limit_call():
            return self._stepper.context
