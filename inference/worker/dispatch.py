"""From prefetched messages to batches: holds the waiting jobs, hands a batch to every idle replica, settles it.

Belongs to the worker's event loop: nothing here blocks, and nothing reads the database.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID, uuid4

from billiard.exceptions import Terminated, WorkerLostError

from inference import clock, errors, failpoints
from inference.batching.queue import BatchQueue, CostModel, Item, Limits
from inference.catalog.specs import Catalog, ModelSpec
from inference.models import WorkerState
from inference.worker.calls import PAST_ITS_LIMIT, BatchCall, BatchReport, run_batch
from inference.worker.heartbeat import Facts
from inference.worker.inflight import Batch, Held, Search, Totals
from inference.worker.isolation import Isolation, Part
from inference.worker.pool import ReplicaPool
from inference.worker.replicas import Replicas

logger = logging.getLogger(__name__)

STUCK_S = 30.0  # past the limit that a child keeps to itself, while the database answers: a child may wait for that
KILL_GRACE_S = 1.0  # between asking a stuck child for its stack and killing it


def _nobody(*_: object) -> None:
    """Until the worker listens."""


class Dispatcher:
    """The batch queues of a worker's models and the batches in flight. Lives as long as the worker, over reconnects."""

    def __init__(self, catalog: Catalog, replicas: Replicas, pool: Callable[[], Any]) -> None:
        self._pool = pool
        self.replicas = replicas
        self.specs = {name: catalog[name] for name in replicas.plan.models}
        self.costs = {name: CostModel() for name in self.specs}
        self.queues = {name: BatchQueue(_limits(spec), self.costs[name]) for name, spec in self.specs.items()}
        self.held: dict[str, Held] = {}
        self.batches: dict[UUID, Batch] = {}
        self.isolation = Isolation()
        self.totals = Totals()
        self.on_rows_left: Callable[[frozenset[UUID]], None] = _nobody
        self.on_expired: Callable[[], None] = _nobody
        self.connected = False
        self.refused: Mapping[str, str] = {}  # models whose queue cannot be consumed, and why
        self.answering_s: Callable[[], float] = lambda: math.inf  # for how long the database has answered
        self.looped_at = time.monotonic()
        self.open = True

    # Jobs in

    def add(self, item: Item, model: str, request: Any) -> None:
        """Hold a job until it is finished. A double of a held job only adds its message."""
        if known := self.held.get(item.id):
            known.requests.append(request)
            if item.alone and self.queues[model].remove(item.id):
                known.item = item
                self.isolation.wait_alone(known)
            return
        self.held[item.id] = held = Held(item=item, model=model, requests=[request])
        if item.alone:
            self.isolation.wait_alone(held)
        else:
            self.queues[model].add(item)

    def forget_messages(self) -> None:
        """The connection is gone: what waits is delivered again; what runs, or has run and is looked into, goes on
        without its messages."""
        self.connected = False
        running = self._running()
        for held in list(self.held.values()):
            held.requests.clear()
            if held.item.id not in running and not held.takes_over:
                self._forget(held)

    def give_back_waiting(self) -> None:
        """The worker leaves: others are to have what waits now, not once the batches that run here have ended. The
        newest first, since what is given back goes before all others."""
        running = self._running()
        for held in reversed(list(self.held.values())):
            if held.item.id not in running and not held.takes_over:
                self._forget(held)
                for request in held.requests:
                    request.give_back()

    def let_go(self) -> None:
        """What cannot be run here now goes back to its queue. What has run stays while a replica that had its model
        starts again; when that has failed, its row goes back too."""
        if self.replicas.serving >= self.specs.keys():
            return
        running = self._running()
        leaving = [
            held
            for held in self.held.values()
            if held.model not in (self.replicas.served if held.takes_over else self.replicas.serving)
            and held.item.id not in running
        ]
        for held in leaving:
            self._forget(held)
            for request in held.requests:
                request.give_back()
        if batches := frozenset(held.takes_over for held in leaving if held.takes_over):
            self.on_rows_left(batches)

    def _forget(self, held: Held) -> None:
        del self.held[held.item.id]
        self.isolation.forget(held)
        self.queues[held.model].remove(held.item.id)

    def _running(self) -> set[str]:
        return {held.item.id for batch in self.batches.values() for held in batch.jobs}

    # Batches out

    def kick(self) -> None:
        """Hand a batch to every idle replica."""
        while self.open and self.pool.idle > 0 and not self._is_kept_free():
            batch = self._next()
            if batch is None or not self._send(batch):
                return

    def _is_kept_free(self) -> bool:
        """Whether a job runs that nothing may run beside, or waits until all that runs has ended."""
        if any(batch.is_alone for batch in self.batches.values()):
            return True
        return bool(self.batches) and self._next_alone(clock.time_s()) is not None

    def _next_alone(self, now: float) -> Part | None:
        if not self.isolation.parts:
            return None
        heads = [head for queue in self._due_queues(now) if (head := queue.head())]
        return self.isolation.next_alone(now, self.replicas.serving, heads)

    def due_in_s(self) -> float | None:
        """Seconds until the next batch may go, when it waits for company only."""
        due = [at for queue in self._able_queues() if (at := queue.due_at_s()) is not None]
        if (apart := self.isolation.due_at(self.replicas.serving)) is not None:
            due.append(apart)
        return max(0.0, min(due) - clock.time_s()) if due else None

    @property
    def pool(self) -> ReplicaPool:
        return self._pool()

    def _next(self) -> Batch | None:
        now = clock.time_s()
        while part := self._next_alone(now) or self.isolation.next(now, self.replicas.serving):
            self.isolation.parts.remove(part)
            if kept := [held for held in part.jobs if self.held.get(held.item.id) is held]:
                return self._batch(kept, part.search)
        for queue in sorted(self._due_queues(now), key=lambda queue: queue.head() or (0, 0.0)):
            if items := queue.take(now):  # none when all that was due has expired
                return self._batch([self.held[item.id] for item in items])
        return None

    def _due_queues(self, now: float) -> list[BatchQueue]:
        return [queue for queue in self._able_queues() if (at := queue.due_at_s()) is not None and at <= now]

    def _able_queues(self) -> list[BatchQueue]:
        return [queue for name, queue in self.queues.items() if name in self.replicas.serving]

    def _batch(self, jobs: list[Held], search: Search | None = None) -> Batch:
        return Batch(id=uuid4(), spec=self.specs[jobs[0].model], jobs=jobs, search=search)

    def _send(self, batch: Batch) -> bool:
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
            run_batch, (call,), callback=lambda report: self._guarded(self._finished, batch, report),
            error_callback=lambda info: self._guarded(self._failed, batch, info),
            accept_callback=lambda pid, at: self._accepted(batch, pid),
        )  # fmt: skip
        if batch.result is None:  # the pool is closing: unfinished messages are restored by the broker
            self.open = False
            return False
        self.batches[batch.id] = batch
        self.isolation.sent(batch)
        self._note_reached(batch)
        return True

    def _note_reached(self, batch: Batch) -> None:
        reached = self.totals.reached[batch.spec.name]
        for held in batch.jobs:
            key = str(held.item.priority)
            reached[key] = max(reached.get(key, 0.0), held.item.arrived_at_s)

    # What became of them

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
            self._broke(batch, error)
        finally:
            self.batches.pop(batch.id, None)
            self.isolation.ended(batch)
        self.let_go()
        self.kick()

    def _finished(self, batch: Batch, report: BatchReport) -> None:
        self.isolation.succeeded(batch)
        queue = self.queues[batch.spec.name]
        if report.engine_s and report.calls == 1:
            queue.ran(report.size, report.length, report.engine_s, jobs=len(report.errors))
            queue.costs.observe_overhead(report.overhead_s)
            queue.padded = report.padded
            queue.cut_at = report.cut_at or math.inf
        if report.oom_shape:
            queue.out_of_memory(*report.oom_shape, now_s=clock.time_s())
        failpoints.reach("before_ack")
        for held in batch.jobs:
            self._release(held, report)
        failpoints.reach("after_ack")
        failed = sum(map(bool, report.errors.values()))
        logger.log(
            logging.INFO if failed else logging.DEBUG, "batch=%s model=%s jobs=%d run=%d failed=%d engine_ms=%.1f",
            batch.id, batch.spec.name, len(batch.jobs), len(report.errors), failed, report.engine_s * 1000,
        )  # fmt: skip

    def _release(self, held: Held, report: BatchReport) -> None:
        self.held.pop(held.item.id, None)
        self.totals.finished += 1
        error = report.errors.get(UUID(held.item.id), "")
        for request in held.requests:
            request.finished(error, report.engine_s)

    def _failed(self, batch: Batch, info: Any) -> None:
        cause = getattr(info.exception, "exc", info.exception)
        if isinstance(cause, errors.ModelUnavailable):  # told before the claim: the rows are as they were
            self.isolation.retry(batch, cause)
            return
        for held in batch.jobs:
            held.takes_over = batch.id
        if isinstance(cause, errors.DeviceFailed):
            self._device_failed(batch, cause)
        elif batch.stuck:
            self.isolation.was_stuck(batch, cause)
        elif isinstance(cause, (WorkerLostError, Terminated)):
            batch.timed_out = f"signal {PAST_ITS_LIMIT:d} " in str(cause)
            self.isolation.died(batch, cause)
        elif isinstance(cause, errors.InferenceError) and cause.retryable:
            self.isolation.retry(batch, cause)
        else:
            self._broke(batch, cause)

    def _broke(self, batch: Batch, cause: BaseException) -> None:
        if not batch.jobs[0].verdict:
            self.isolation.broke(batch, cause)
            return
        logger.error("batch=%s its verdict was not recorded, its row is left to the reconciler: %r", batch.id, cause)
        for held in batch.jobs:
            self._release(held, BatchReport(errors={}))

    def _device_failed(self, batch: Batch, cause: BaseException) -> None:
        """A device in a sticky error state recovers with a new process only, which loads and so proves it."""
        if batch.pid is not None:
            self.pool.end(batch.pid)
        self.isolation.device_failed(batch, cause)

    # Twice a second

    def sweep(self) -> None:
        """Kill stuck children, forget calls that the pool dropped, drop what expired."""
        self.looped_at = now = time.monotonic()
        for batch in list(self.batches.values()):
            if batch.pid is not None:
                waited_s = now - batch.accepted_at - batch.spec.time_limit_s
                stuck_s = min(waited_s, self.answering_s()) - STUCK_S
                if stuck_s > 0:
                    self._kill_stuck(batch, batch.pid, stuck_s)
            elif batch.result not in self.pool._cache.values():
                self._abandon(batch)
        self._drop_expired()
        self.kick()

    def _drop_expired(self) -> None:
        """Their messages are done with; the rows are marked beside the event loop."""
        expired = [item for queue in self.queues.values() for item in queue.expire(clock.time_s())]
        for item in expired:
            for request in self.held.pop(item.id).requests:
                request.finished(errors.Expired.code, 0.0)
        if expired:
            self.on_expired()

    def _kill_stuck(self, batch: Batch, pid: int, stuck_s: float) -> None:
        if not batch.stuck:
            batch.stuck = True
            logger.error("batch=%s pid=%d is stuck outside its engine, its stack follows, then it is killed", batch.id,
                         pid)  # fmt: skip
            _signal(pid, signal.SIGUSR2)
        elif stuck_s > KILL_GRACE_S:
            _signal(pid, signal.SIGKILL)

    def _abandon(self, batch: Batch) -> None:
        """Flushed by the pool before a child had it, after a reconnect: its messages come again."""
        del self.batches[batch.id]
        for held in batch.jobs:
            if not held.requests and not held.takes_over:
                self.held.pop(held.item.id, None)
        self.isolation.again(batch)

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
            held=sum(map(len, self.queues.values())) + len(self.isolation),
            finished=self.totals.finished,
            speeds={name: costs.items_per_s() for name, costs in self.costs.items()},
            reached={model: dict(reached) for model, reached in list(self.totals.reached.items())},
            looped_at=self.looped_at,
        )

    def _state(self) -> WorkerState:
        if not self.replicas.have_told:
            return WorkerState.STARTING
        is_whole = len(self.replicas.served) == len(self.specs) and not self._why_not()
        return WorkerState.READY if is_whole else WorkerState.DEGRADED

    def _why_not(self) -> dict[str, str]:
        return {**self.replicas.why_not(), **self.refused}


def _limits(spec: ModelSpec) -> Limits:
    return Limits(
        max_batch_size=spec.max_batch_size, max_batch_tokens=spec.max_batch_tokens, max_wait_s=spec.max_wait_ms / 1000
    )


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        logger.info("pid=%d is gone already", pid)
