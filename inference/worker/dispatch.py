"""Hands a batch to every idle replica, and sees to it that none stays in flight for ever.

Belongs to the event loop, as do the backlog and the settlement: nothing here blocks, and nothing reads the database.
"""

import contextlib
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any
from uuid import UUID, uuid4

from inference import clock
from inference.catalog.specs import Catalog
from inference.models import WorkerState
from inference.worker import reports
from inference.worker.backlog import Backlog
from inference.worker.calls import Asked, BatchCall, BatchReport
from inference.worker.child import run_batch
from inference.worker.heartbeat import Facts
from inference.worker.inflight import Batch
from inference.worker.lazy import LazyReport
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
        self.batches = self.backlog.batches
        self.settlement = Settlement(self.backlog, end=lambda pid: self.pool.end(pid))  # noqa: PLW0108 - later
        self.on_rows_left: Callable[[frozenset[UUID]], None] = _nobody
        self.on_expired: Callable[[], None] = _nobody
        self.lazy = LazyReport()
        self.connected = False
        self.refused: Mapping[str, str] = {}  # models whose queue cannot be consumed, and why
        self.answering_s: Callable[[], float] = lambda: math.inf  # for how long the database has answered
        self.looped_at = time.monotonic()
        self._others_turn: set[int] = set()  # children that took steps last, where others wait too
        self.open = True

    @property
    def pool(self) -> ReplicaPool:
        return self._pool()

    @property
    def specs(self) -> Catalog:
        """By which jobs run now."""
        return self.backlog.specs

    def keeps(self, pid: int) -> bool:
        """Whether a batch is open in this child."""
        return any(batch.is_open and batch.pid == pid for batch in self.batches.values())

    @property
    def prefetch(self) -> int:
        """Messages: of one batch that runs, and of one to choose the next from, a replica."""
        biggest = max((spec.max_batch_size for spec in self.specs.values()), default=1)
        return 2 * biggest * self.replicas.plan.replicas

    def forget_messages(self) -> None:
        """The connection is gone."""
        self.connected = False
        self.backlog.forget_messages()

    def let_go(self) -> None:
        """Of what cannot be run here now."""
        self.backlog.follow()
        if batches := self.backlog.let_go():
            self.on_rows_left(batches)

    def kick(self) -> None:
        """Work for every idle replica: a new batch, or the next steps of one that is open in it, by turns."""
        for pid in sorted(self.pool.idle(), key=lambda pid: len(self._open_in(pid))):
            opened = self._open_in(pid)
            if opened and pid not in self._others_turn:
                self._others_turn.add(pid)
                self._go_on(opened[0])
            else:
                self._others_turn.discard(pid)
                if not self._begin(pid, opened) and opened:
                    self._go_on(opened[0])
        self._call_back()

    def _open_in(self, pid: int) -> list[Batch]:
        """Of this child, whose turn is first."""
        found = (batch for batch in self.batches.values() if batch.is_open and batch.pid == pid)
        return sorted(found, key=lambda batch: batch.called_at)

    def _begin(self, pid: int, opened: Collection[Batch]) -> bool:
        """A new batch, of no model that has one open there. Whether there was one."""
        if not self.open or self._is_kept_free() or (opened and not self.replicas.may_run(pid)):
            return False
        following = self.backlog.next({batch.spec.name for batch in opened}, idle=len(self.pool.idle()))
        if following is None:
            return False
        jobs, search, is_closed = following
        batch = Batch(
            id=uuid4(), spec=self.specs[jobs[0].model], jobs=jobs, search=search, pid=pid, is_closed=is_closed
        )
        if self._call(batch):
            self.backlog.started(batch)
        return True

    def _go_on(self, batch: Batch) -> None:
        """With those that join now."""
        batch.called = self.backlog.joining(batch) if self._may_be_joined(batch) else []
        batch.jobs += batch.called
        self.backlog.has_joined(batch)
        self._call(batch, goes_on=True)

    def _may_be_joined(self, batch: Batch) -> bool:
        """Not while its child is to load something, or something is to run alone."""
        return (
            self.open and not batch.is_closed
            and batch.spec is self.specs.get(batch.spec.name) and self.replicas.may_run(batch.pid)
            and not self._is_kept_free() and self.replicas.wanted([batch.pid]) is None
        )  # fmt: skip

    def _call_back(self) -> None:
        """Have those children come back after their step for which there is more than that."""
        for batch in self.batches.values():
            if batch.is_open and batch.result and (self._has_others(batch) or self._may_grow(batch)):
                self.replicas.ask(batch.pid, Asked.COME_BACK)

    def _has_others(self, batch: Batch) -> bool:
        """Whether other work waits for the child of `batch`."""
        opened = self._open_in(batch.pid)
        if len(opened) > 1:
            return True
        return self.open and not self._is_kept_free() and self.backlog.has_next({other.spec.name for other in opened})

    def _may_grow(self, batch: Batch) -> bool:
        return self.backlog.may_join(batch) and self._may_be_joined(batch)

    def _is_kept_free(self) -> bool:
        """Whether a job runs that nothing may run beside, or waits until all that runs has ended."""
        if any(batch.is_alone for batch in self.batches.values()):
            return True
        return bool(self.batches) and self.backlog.next_alone(clock.time_s()) is not None

    def _call(self, batch: Batch, *, goes_on: bool = False) -> bool:
        call = BatchCall(
            batch=batch.id,
            model=batch.spec.name,
            digest=batch.spec.digest,
            job_ids=tuple(UUID(held.item.id) for held in batch.called),
            time_limit_s=batch.spec.time_limit_s,
            is_last=self.replicas.is_last(batch.spec),
            alone=batch.is_alone,
            takes_over=tuple({held.takes_over for held in batch.called if held.takes_over}),
            goes_on=goes_on,
            waiting=tuple(other.id for other in self._open_in(batch.pid) if other is not batch),
            verdict=batch.begun[0].verdict,
        )
        self.replicas.ask(batch.pid, Asked.GO_ON if self.open else Asked.TO_THE_END)
        batch.called_at, batch.has_begun = time.monotonic(), False
        batch.result = self.pool.send(
            batch.pid, run_batch, (call,), callback=lambda report: self._guarded(self._reported, batch, report),
            error_callback=lambda info: self._guarded(self._failed, batch, info),
            accept_callback=lambda pid, at: self._accepted(batch, pid),
        )  # fmt: skip
        if batch.result is None:  # the pool is closing: unfinished messages are restored by the broker
            self.open = False
        return batch.result is not None

    def _accepted(self, batch: Batch, pid: int) -> None:
        batch.pid, batch.has_begun, batch.accepted_at = pid, True, time.monotonic()
        batch.begun_at = batch.begun_at or batch.accepted_at
        for held in batch.called:
            for request in held.requests:
                request.started(pid)

    def _reported(self, batch: Batch, report: BatchReport) -> None:
        batch.is_open = bool(report.left)
        if batch.is_open:
            self.settlement.stepped(batch, report)
        else:
            self.settlement.finished(batch, report)

    def _failed(self, batch: Batch, info: Any) -> None:
        batch.is_open = False
        self.settlement.failed(batch, info)

    def _guarded(self, settle: Callable[[Batch, Any], None], batch: Batch, result: Any) -> None:
        """The pool swallows what its callbacks raise: say it, and never leave the batch behind."""
        try:
            settle(batch, result)
        except Exception as error:
            logger.exception("batch=%s not settled", batch.id)
            batch.is_open = False
            self.settlement.broke(batch, error)
        finally:
            batch.result = None
            if not batch.is_open:
                self.backlog.ended(batch)
        self.let_go()
        self.kick()

    def sweep(self) -> None:
        """Twice a second: kill stuck children, forget calls that the pool dropped, drop what expired."""
        self.looped_at = now = time.monotonic()
        for batch in list(self.batches.values()):
            if batch.result is None:  # open, and it waits for its turn
                if not self.pool.has(batch.pid):
                    self._lost_open(batch)
            elif batch.has_begun:
                self._end_if_stuck(batch, now)
            elif not self.pool.knows(batch.result):
                self._abandon(batch)
        if self.backlog.drop_expired():
            self.on_expired()  # the rows are marked beside the event loop
        self.kick()

    def _end_if_stuck(self, batch: Batch, now: float) -> None:
        """One that is stuck outside its engine, whose own limit it does not reach."""
        stuck_s = min(now - batch.accepted_at - batch.spec.time_limit_s, self.answering_s()) - STUCK_S
        if stuck_s <= 0 or (batch.stuck and stuck_s <= KILL_GRACE_S):
            return
        if not batch.stuck:
            logger.error("batch=%s pid=%d is stuck, its stack follows, then it is killed", batch.id, batch.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(batch.pid, signal.SIGKILL if batch.stuck else signal.SIGUSR2)
        batch.stuck = True

    def _lost_open(self, batch: Batch) -> None:
        """Its child ended between two calls of it: none of its jobs is to blame."""
        logger.error("batch=%s of %d lost: its process ended while it ran something else", batch.id, len(batch.jobs))
        self.settlement.lost(batch)
        self.backlog.ended(batch)

    def _abandon(self, batch: Batch) -> None:
        """Flushed by the pool before a child had it, after a reconnect: its messages come again. An open one goes on
        with its next call."""
        batch.result = None
        forgotten = [held for held in batch.called if not held.requests and not held.takes_over]
        for held in forgotten:
            self.backlog.held.pop(held.item.id, None)
        if batch.is_open:
            batch.jobs = [held for held in batch.jobs if held not in batch.called]
            self.backlog.isolation.rejoin([held for held in batch.called if held not in forgotten])
        else:
            del self.batches[batch.id]
            self.backlog.isolation.again(batch)

    def leave(self) -> None:
        """Others are to have what no child has begun now, not once the batches that run here have ended."""
        self.open = False
        for batch in list(self.batches.values()):
            self.replicas.ask(batch.pid, Asked.TO_THE_END)
            if not batch.is_open and not self.pool.knows(batch.result):
                self.backlog.ended(batch)
        self.backlog.give_back_waiting()

    def facts(self) -> Facts:
        pool, replicas, lazy = self._pool(), self.replicas, self.lazy
        return Facts(
            state=self._state(),
            model_names=sorted((replicas.served | lazy.able) - self.refused.keys()),
            replicas=reports.replica_rows(replicas, {**lazy.why_not, **self.refused}),
            catalog=reports.catalog(replicas, lazy),
            error="; ".join(f"{name}: {why}" for name, why in self._why_not().items()),
            connected=self.connected,
            replicas_ready=pool.ready if pool else 0,
            replicas_busy=pool.busy if pool else 0,
            held=len(self.backlog),
            finished=self.settlement.jobs_finished,
            speeds={name: queue.costs.items_per_s() for name, queue in self.backlog.queues.items()},
            reached={
                model: dict(reached)
                for model, reached in list(self.backlog.reached.items())
                if model not in replicas.parked  # whose jobs wait for their turn, none is passed
            },
            generation=self.settlement.generated.row(list(self.batches.values()), replicas=pool.ready if pool else 0),
            looped_at=self.looped_at,
        )

    def _state(self) -> WorkerState:
        looked_into = self.lazy.able | self.lazy.why_not.keys()
        if not self.replicas.have_told or not self.replicas.parked <= looked_into:
            return WorkerState.STARTING
        is_whole = self.replicas.served | self.lazy.able >= self.specs.keys() and not self._why_not()
        return WorkerState.READY if is_whole else WorkerState.DEGRADED

    def _why_not(self) -> dict[str, str]:
        return {**reports.why_not(self.replicas), **self.lazy.why_not, **self.refused}
