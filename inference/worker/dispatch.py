"""Hands a batch to every idle replica, and sees to it that none stays in flight for ever.

Belongs to the event loop, as do the backlog and the settlement: nothing here blocks, and nothing reads the database.
"""

import contextlib
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID, uuid4

from inference import clock
from inference.models import WorkerState
from inference.worker.backlog import Backlog
from inference.worker.calls import BatchCall
from inference.worker.child import run_batch
from inference.worker.heartbeat import Facts
from inference.worker.inflight import Batch, HeldJob, Search
from inference.worker.pool import ReplicaPool
from inference.worker.replicas import Replicas
from inference.worker.settlement import Settlement

logger = logging.getLogger(__name__)

STUCK_S = 30.0  # past the limit that a child keeps to itself, while the database answers: a child may wait for that
KILL_GRACE_S = 1.0  # between asking a stuck child for its stack and killing it


def _nobody(*_: object) -> None:
    """Until the worker listens."""


class Dispatcher:
    """A worker's jobs and batches in flight. Lives as long as the worker, over reconnects."""

    def __init__(self, replicas: Replicas, pool: Callable[[], ReplicaPool]) -> None:
        self._pool = pool
        self.replicas = replicas
        self.backlog = Backlog(replicas)
        self.specs = self.backlog.specs
        self.batches = self.backlog.batches
        self.settlement = Settlement(self.backlog, end=lambda pid: self.pool.end(pid))  # noqa: PLW0108 - later
        self.on_rows_left: Callable[[frozenset[UUID]], None] = _nobody
        self.on_expired: Callable[[], None] = _nobody
        self.connected = False
        self.refused: Mapping[str, str] = {}  # models whose queue cannot be consumed, and why
        self.answering_s: Callable[[], float] = lambda: math.inf  # for how long the database has answered
        self.looped_at = time.monotonic()
        self.open = True

    @property
    def pool(self) -> ReplicaPool:
        return self._pool()

    def forget_messages(self) -> None:
        """The connection is gone."""
        self.connected = False
        self.backlog.forget_messages()

    def let_go(self) -> None:
        """Of what cannot be run here now."""
        if batches := self.backlog.let_go():
            self.on_rows_left(batches)

    def kick(self) -> None:
        """Hand a batch to every idle replica."""
        while self.open and self.pool.idle > 0 and not self._is_kept_free():
            following = self.backlog.next()
            if following is None or not self._send(*following):
                return

    def _is_kept_free(self) -> bool:
        """Whether a job runs that nothing may run beside, or waits until all that runs has ended."""
        if any(batch.is_alone for batch in self.batches.values()):
            return True
        return bool(self.batches) and self.backlog.next_alone(clock.time_s()) is not None

    def _send(self, jobs: list[HeldJob], search: Search | None) -> bool:
        batch = Batch(id=uuid4(), spec=self.specs[jobs[0].model], jobs=jobs, search=search)
        call = BatchCall(
            batch=batch.id,
            model=batch.spec.name,
            job_ids=tuple(UUID(held.item.id) for held in batch.jobs),
            time_limit_s=batch.spec.time_limit_s,
            alone=batch.is_alone,
            takes_over=tuple({held.takes_over for held in batch.jobs if held.takes_over}),
            verdict=batch.jobs[0].verdict,
        )
        batch.result = self.pool.apply_async(
            run_batch, (call,), callback=lambda report: self._guarded(self.settlement.finished, batch, report),
            error_callback=lambda info: self._guarded(self.settlement.failed, batch, info),
            accept_callback=lambda pid, at: self._accepted(batch, pid),
        )  # fmt: skip
        if batch.result is None:  # the pool is closing: unfinished messages are restored by the broker
            self.open = False
            return False
        self.backlog.started(batch)
        return True

    def _accepted(self, batch: Batch, pid: int) -> None:
        batch.pid, batch.accepted_at = pid, time.monotonic()
        for held in batch.jobs:
            for request in held.requests:
                request.started(pid)

    def _guarded(self, settle: Callable[[Batch, Any], None], batch: Batch, result: Any) -> None:
        """The pool swallows what its callbacks raise: say it, and never leave the batch behind."""
        try:
            settle(batch, result)
        except Exception as error:
            logger.exception("batch=%s not settled", batch.id)
            self.settlement.broke(batch, error)
        finally:
            self.backlog.ended(batch)
        self.let_go()
        self.kick()

    def sweep(self) -> None:
        """Twice a second: kill stuck children, forget calls that the pool dropped, drop what expired."""
        self.looped_at = now = time.monotonic()
        for batch in list(self.batches.values()):
            if batch.pid is not None:
                self._end_if_stuck(batch, batch.pid, now)
            elif not self.pool.knows(batch.result):
                self._abandon(batch)
        if self.backlog.drop_expired():
            self.on_expired()  # the rows are marked beside the event loop
        self.kick()

    def _end_if_stuck(self, batch: Batch, pid: int, now: float) -> None:
        """One that is stuck outside its engine, whose own limit it does not reach."""
        stuck_s = min(now - batch.accepted_at - batch.spec.time_limit_s, self.answering_s()) - STUCK_S
        if stuck_s <= 0 or (batch.stuck and stuck_s <= KILL_GRACE_S):
            return
        if not batch.stuck:
            logger.error("batch=%s pid=%d is stuck, its stack follows, then it is killed", batch.id, pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if batch.stuck else signal.SIGUSR2)
        batch.stuck = True

    def _abandon(self, batch: Batch) -> None:
        """Flushed by the pool before a child had it, after a reconnect: its messages come again."""
        del self.batches[batch.id]
        for held in batch.jobs:
            if not held.requests and not held.takes_over:
                self.backlog.held.pop(held.item.id, None)
        self.backlog.isolation.again(batch)

    def facts(self) -> Facts:
        pool, replicas = self._pool(), self.replicas
        return Facts(
            state=self._state(),
            model_names=sorted(replicas.served - self.refused.keys()),
            replicas=replicas.rows(self.refused),
            error="; ".join(f"{name}: {why}" for name, why in self._why_not().items()),
            connected=self.connected,
            replicas_ready=pool.ready if pool else 0,
            replicas_busy=pool.busy if pool else 0,
            held=len(self.backlog),
            finished=self.settlement.jobs_finished,
            speeds={name: queue.costs.items_per_s() for name, queue in self.backlog.queues.items()},
            reached={model: dict(reached) for model, reached in list(self.backlog.reached.items())},
            looped_at=self.looped_at,
        )

    def _state(self) -> WorkerState:
        if not self.replicas.have_told:
            return WorkerState.STARTING
        is_whole = len(self.replicas.served) == len(self.specs) and not self._why_not()
        return WorkerState.READY if is_whole else WorkerState.DEGRADED

    def _why_not(self) -> dict[str, str]:
        return {**self.replicas.why_not(), **self.refused}
