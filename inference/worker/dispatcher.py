"""The dispatcher, which sends each call of a batch to its replica and lets no call stay in flight for ever.

It runs in the event loop, as the backlog and the settlement do: nothing here blocks, and nothing reads the database.
"""

import contextlib
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from inference.catalog.specs import Catalog
from inference.models import WorkerState
from inference.worker.calls import IN_HAND, BatchCall, BatchReport, ChildCommand
from inference.worker.child.served_calls import run_batch
from inference.worker.maintenance import row_values
from inference.worker.maintenance.heartbeat import WorkerSnapshot
from inference.worker.maintenance.housekeeping import Housekeeping
from inference.worker.processes.replica_pool import ReplicaPool
from inference.worker.scheduling.backlog import Backlog
from inference.worker.scheduling.held_jobs import Batch
from inference.worker.scheduling.residency_controller import ResidencyController
from inference.worker.scheduling.scheduler import Scheduler
from inference.worker.scheduling.settlement import Settlement
from inference.worker.scheduling.spare_threads import SpareThreads
from inference.worker.scheduling.unfetched_job_finder import UnfetchedJobFinder

logger = logging.getLogger(__name__)

STUCK_S = 30.0  # beyond the limit that a child enforces, while the database answers: the child may wait for it
KILL_GRACE_S = 1.0  # between the request for a stuck child's stack and its kill
GIVE_UP_S = 30.0  # after the kill: a process that is stuck in a driver does not end
TURN_S = 2.0  # a longer turn of the event loop is a pause: a sweep comes twice a second


class Dispatcher:
    """The owner of a worker's jobs and of its batches in flight.

    It lives as long as the worker, across reconnects to the broker.
    """

    def __init__(
        self,
        backlog: Backlog,
        pool: ReplicaPool,
        residency: ResidencyController,
        unfetched: UnfetchedJobFinder,
        housekeeping: Housekeeping,
    ) -> None:
        self.backlog = backlog
        self.pool = pool
        self.residency = residency
        self.replicas = backlog.replicas
        self.batches = backlog.batches
        self.scheduler = Scheduler(backlog, pool, self._send_call)
        self.spare_threads = SpareThreads(backlog)
        self.settlement = Settlement(backlog, self.spare_threads, end=pool.end_process)
        self.connected = False
        self.refused: Mapping[str, str] = {}  # models whose queue cannot be consumed, and why
        self.looped_at = time.monotonic()
        self._unfetched = unfetched
        self._housekeeping = housekeeping

    @property
    def specs(self) -> Catalog:
        """The catalog entries by which jobs run now."""
        return self.backlog.specs

    @property
    def prefetch_count(self) -> int:
        """The messages to prefetch: enough for the calls in hand of each replica, and for one more to choose from."""
        return self._calls * max((spec.max_batch_size for spec in self.specs.values()), default=1)

    @property
    def _calls(self) -> int:
        plan = self.replicas.plan
        return sum(1 + (IN_HAND if plan.works_ahead(index) else 1) for index in range(plan.replicas))

    def note_connection(self) -> None:
        """Note that the broker is connected.

        The event loop turns from now on: the connection may break again before the first sweep.
        """
        self.connected = True
        self.looped_at = time.monotonic()

    def note_refused_queues(self, refused: Mapping[str, str]) -> None:
        """Note why queues cannot be consumed, by model."""
        self.refused = refused

    def forget_messages(self) -> None:
        """Forget all messages, since the connection to the broker is gone."""
        self.connected = False
        self.backlog.forget_messages()

    def give_back_unrunnable_jobs(self) -> None:
        """Give back the jobs that cannot be run here now, and report the batches whose rows go back too."""
        self.backlog.update_queues()
        if batches := self.backlog.give_back_unrunnable_jobs():
            self._housekeeping.requeue_batch_jobs_soon(batches)

    def send_next_calls(self) -> None:
        if self.scheduler.may_begin:
            self._unfetched.hand_over_found_jobs(self.backlog)
        self.scheduler.give_out_work()
        if len(self.backlog.held) >= self.prefetch_count and len(self.backlog):
            self._unfetched.request_look(self.backlog, calls=self._calls)

    def _send_call(self, batch: Batch) -> bool:
        self.spare_threads.choose_threads(batch)
        call = BatchCall(
            batch=batch.id,
            number=batch.number,
            model=batch.spec.name,
            digest=batch.spec.digest,
            job_ids=tuple(held.job_id for held in batch.called),
            time_limit_s=batch.spec.time_limit_s,
            ahead_s=sum(other.spec.time_limit_s for other in self.scheduler.list_batches_in_hand(batch.pid)),
            is_last=self.replicas.has_failed_successor(batch.spec),
            again=batch.is_closed,
            alone=batch.must_run_alone,
            takes_over=tuple({over for held in batch.called for over in held.takes_over}),
            goes_on=batch.is_open,
            waiting=tuple(other.id for other in self.scheduler.list_open_batches(batch.pid) if other is not batch),
            spare_threads=batch.spare_threads,
            verdict=batch.begun[0].verdict,
            raised=batch.begun[0].raised,
            trace=batch.begun[0].trace,
        )
        self.replicas.send_step_command(batch.pid, ChildCommand.CONTINUE)
        result = self.pool.send_call(
            batch.pid,
            run_batch,
            (call,),
            done=lambda report: self._settle_call(self._settle_report, batch, report),
            failed=lambda cause: self._settle_call(self._settle_failure, batch, cause),
            accepted=lambda pid: self._note_accepted_call(batch, pid),
        )
        batch.note_sent_call(result)
        if result is None:  # the pool is closing: the broker restores unfinished messages
            self.scheduler.stop_new_batches()
        return result is not None

    def _note_accepted_call(self, batch: Batch, pid: int) -> None:
        batch.note_accepted_call(pid)
        for held in batch.called:
            for request in held.requests:
                request.report_started(pid)

    def _settle_report(self, batch: Batch, report: BatchReport) -> None:
        batch.update_is_open(report.left)
        if batch.is_open:
            self.settlement.settle_steps(batch, report)
        else:
            self.settlement.settle_finished_batch(batch, report)

    def _settle_failure(self, batch: Batch, cause: BaseException) -> None:
        batch.note_end()
        self.settlement.settle_failed_batch(batch, cause)

    def _settle_call(self, settle: Callable[[Batch, Any], None], batch: Batch, result: Any) -> None:
        """Settle a batch. Log an error, and settle the batch as broken then.

        A batch that is not open is removed in any case.
        """
        if batch.id not in self.batches:  # it was given up before
            return
        self._note_suspension()
        try:
            settle(batch, result)
        except Exception as error:
            logger.exception("batch=%s not settled", batch.id)
            batch.note_end()
            self.settlement.settle_unexpected_failure(batch, error)
        finally:
            batch.note_call_end()
            if not batch.is_open:
                self.backlog.note_batch_end(batch)
            for other in self.scheduler.list_batches_in_hand(batch.pid):
                other.note_previous_call_end()
        self.give_back_unrunnable_jobs()
        self.send_next_calls()

    def end_stuck_and_expired(self, database_up_s: float = math.inf) -> None:
        """Kill stuck children, forget calls that the pool dropped, and drop expired jobs. Runs twice a second.

        `database_up_s` are the seconds for which the database has answered.
        """
        self._note_suspension()
        now = self.looped_at
        for batch in list(self.batches.values()):
            if batch.result is None:  # it is open, and waits for its turn
                # A process runs it to its end by itself as the worker leaves.
                if self.scheduler.may_begin and not self.pool.has_pid(batch.pid):
                    self._run_lost_batch_again(batch)
            elif not batch.has_begun and not self.pool.is_unanswered(batch.result):
                self._abandon_call(batch)
            elif self.scheduler.list_batches_in_hand(batch.pid)[:1] == [batch]:
                self._end_if_stuck(batch, now, database_up_s)
        if self.backlog.drop_expired():
            self._housekeeping.mark_expired_soon()
        self.send_next_calls()

    def _note_suspension(self) -> None:
        """Exclude the time in which this process was stopped from the times of its batches.

        Its children were stopped too, or nothing supervised them.
        """
        now, before = time.monotonic(), self.looped_at
        self.looped_at = now
        if now - before > TURN_S and self.scheduler.may_begin:  # the loop does not turn while the worker stops
            logger.warning("this process was stopped, or kept from running, for %.1f s", now - before)
            for batch in self.batches.values():
                batch.note_suspension(now - before, now)

    def _end_if_stuck(self, batch: Batch, now: float, database_up_s: float) -> None:
        """End the child process of a batch that is stuck.

        Such a batch hangs outside its engine, where the time limit of the engine does not apply, or its child never
        begins it. The first call asks for the stack, a call `KILL_GRACE_S` later kills.
        """
        if not batch.has_begun and self.pool.is_starting(batch.pid):  # it was sent as the child began its next load
            batch.note_previous_call_end()
            return
        stuck_s = min(now - batch.accepted_at - batch.spec.time_limit_s, database_up_s) - STUCK_S
        if stuck_s <= 0 or (batch.stuck and stuck_s <= KILL_GRACE_S):
            return
        if not batch.stuck:
            logger.error("batch=%s pid=%d is stuck, its stack follows, then it is killed", batch.id, batch.pid)
        elif now - batch.killed_at > GIVE_UP_S:
            self._give_up_process(batch)
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(batch.pid, signal.SIGKILL if batch.stuck else signal.SIGUSR2)
        for each in self.scheduler.list_batches_in_hand(batch.pid):  # they end with the process
            each.note_kill(now)

    def _give_up_process(self, batch: Batch) -> None:
        """Run a batch's jobs elsewhere, since its process does not end when it is killed.

        Outcomes that the process may still record are dropped.
        """
        logger.error("batch=%s pid=%d does not end when it is killed, and is given up", batch.id, batch.pid)
        self.replicas.mark_unkillable(batch.pid)
        for lost in {*self.scheduler.list_batches_in_hand(batch.pid), *self.scheduler.list_open_batches(batch.pid)}:
            lost.note_end()
            self.settlement.rerun_batch_without_blame(lost)
            self.backlog.note_batch_end(lost)
        self.backlog.update_queues()  # other replicas may have a newer entry

    def _run_lost_batch_again(self, batch: Batch) -> None:
        """Run an open batch again whose child process ended between two of its calls.

        None of its jobs is to blame.
        """
        logger.error("batch=%s of %d lost: its process ended while it ran something else", batch.id, len(batch.jobs))
        self.settlement.rerun_batch_without_blame(batch)
        self.backlog.note_batch_end(batch)

    def _abandon_call(self, batch: Batch) -> None:
        """Drop a call that the pool forgot before the child process reported that it had begun it.

        The child has ended, and may have claimed the jobs all the same. Or a connection was lost: the messages are
        delivered again. An open batch continues with its next call.
        """
        batch.note_call_end()
        forgotten = [held for held in batch.called if not (held.requests or held.takes_over or held.is_from_row)]
        for held in forgotten:
            self.backlog.drop_job_without_messages(held)
        if batch.is_open:
            batch.take_out_jobs({held.job_id for held in batch.called})
            self.backlog.isolation.retry_joining_jobs([held for held in batch.called if held not in forgotten])
        else:
            self.backlog.note_batch_end(batch)
            for held in batch.jobs if not self.pool.has_pid(batch.pid) else ():
                held.add_ended_batch(batch.id)
            self.backlog.isolation.retry_same_batch(batch)

    def drain(self) -> None:
        """Begin nothing more, and give back the jobs that no child process has begun.

        Other workers can run these at once, and not only when the running batches have ended.
        """
        self.scheduler.stop_new_batches()
        for batch in list(self.batches.values()):
            if not batch.is_open and not self.pool.is_unanswered(batch.result):
                self.backlog.note_batch_end(batch)
        running = sum(len(batch.jobs) for batch in self.batches.values())
        logger.info("the worker leaves once %d jobs have ended that run", running)
        self.backlog.give_back_waiting_jobs()

    def make_snapshot(self) -> WorkerSnapshot:
        pool, replicas, lazy = self.pool, self.replicas, self.residency.report
        # Jobs of these wait for their turn: none is passed.
        waiting_models = replicas.unneeded_models | replicas.paused_or_drained_models
        return WorkerSnapshot(
            state=self._choose_state(),
            model_names=[]
            if replicas.intents.is_drained
            else sorted((replicas.runnable | lazy.able) - self.refused.keys()),
            replicas=row_values.make_replica_values(replicas, {**lazy.why_not, **self.refused}),
            catalog=row_values.make_catalog_value(replicas, lazy),
            error="; ".join(f"{name}: {why}" for name, why in self._list_problems().items()),
            connected=self.connected,
            replicas_ready=replicas.able_child_count,
            replicas_busy=pool.busy_count,
            held=len(self.backlog),
            finished=self.settlement.jobs_finished,
            speeds={name: queue.costs.items_per_s() for name, queue in self.backlog.queues.items()},
            reached={
                model: dict(reached)
                for model, reached in list(self.backlog.reached.items())
                if model not in waiting_models
            },
            generation=self.settlement.generated.make_row_value(
                list(self.batches.values()), replicas=replicas.able_child_count
            ),
            costs={name: queue.costs.make_snapshot() for name, queue in self.backlog.queues.items()},
            looped_at=self.looped_at,
        )

    def _choose_state(self) -> WorkerState:
        if self.replicas.intents.is_drained:
            return WorkerState.DRAINING if self.batches or self.backlog.isolation else WorkerState.DRAINED
        lazy = self.residency.report
        looked_into = lazy.able | lazy.why_not.keys()
        if not self.replicas.have_all_reported or not self.replicas.unneeded_models <= looked_into:
            return WorkerState.STARTING
        is_whole = self.replicas.served_models | lazy.able >= self.specs.keys() and not self._list_problems()
        return WorkerState.READY if is_whole else WorkerState.DEGRADED

    def _list_problems(self) -> dict[str, str]:
        return {**row_values.find_load_failures(self.replicas), **self.residency.report.why_not, **self.refused}
