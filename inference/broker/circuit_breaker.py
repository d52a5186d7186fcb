"""A circuit breaker, so that many threads do not wait one after the other for a server that is away."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from inference import budget
from inference.errors import BrokerUnavailable


class CircuitOpen(BrokerUnavailable):
    """The broker was not asked, because another call failed just now; that call has reported it."""


class CircuitBreaker:
    """A circuit breaker that lets a few calls through at a time.

    After one has failed, all are refused at once for `rest_s`; then single calls probe. `failures` are the exceptions
    that become `BrokerUnavailable`.
    """

    def __init__(self, *failures: type[BaseException], slots: int, wait_s: float = 0.5, rest_s: float = 1.0) -> None:
        self.failures = failures
        self.wait_s, self.rest_s = wait_s, rest_s
        self._slots = threading.BoundedSemaphore(slots)
        self._lock = threading.Lock()
        self._probe_at: float | None = None  # when the next call may probe; None while calls succeed
        self._reason = ""

    @contextlib.contextmanager
    def guard_call(self) -> Iterator[None]:
        """Run the block as one call, and raise `BrokerUnavailable` if it fails or is refused.

        A request whose time is spent begins no call. The breaker does not end a call: its own time limit does.
        """
        if self.is_open():
            self._refuse()
        if not budget.get_remaining_s():
            raise BrokerUnavailable(f"The broker was not called: {budget.SPENT}.")
        with budget.counted_wait(), self._take_slot():
            self._enter()
            try:
                yield
            except self.failures as error:
                self._trip(error)
            self._probe_at = None

    @contextlib.contextmanager
    def _take_slot(self) -> Iterator[None]:
        if not self._slots.acquire(timeout=min(self.wait_s, budget.get_remaining_s())):
            raise BrokerUnavailable("The broker is too slow for the calls that wait for it.", retry_after_s=self.rest_s)
        try:
            yield
        finally:
            self._slots.release()

    def is_open(self) -> bool:
        probe_at = self._probe_at  # read once: a call that succeeds may set it to None meanwhile
        return probe_at is not None and time.monotonic() < probe_at

    def _enter(self) -> None:
        """Begin a call, or refuse it while the breaker rests.

        One call probes at a time: the next one may in `rest_s`, or when this one has succeeded.
        """
        with self._lock:
            if self.is_open():
                self._refuse()
            if self._probe_at is not None:
                self._probe_at = time.monotonic() + self.rest_s

    def _trip(self, error: BaseException) -> None:
        with self._lock:
            self._probe_at = time.monotonic() + self.rest_s
            self._reason = f"{type(error).__name__}: {error}"
        raise BrokerUnavailable(f"The broker cannot be used: {self._reason}", retry_after_s=self.rest_s) from error

    def _refuse(self) -> None:
        raise CircuitOpen(f"The broker could not be used just now: {self._reason}", retry_after_s=self.rest_s)
