"""The housekeeping that every worker does beside its jobs, in rounds of a few seconds.

It has its own thread, so that a long round delays no heartbeat.
"""

import faulthandler
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from uuid import UUID

from django.conf import settings
from django.db.models import Q

from inference.broker import publisher
from inference.broker.address import get_queue_name
from inference.figures import rollup, sample, tally_rows
from inference.store import transitions
from inference.upkeep import acts, reconcile, retention
from inference.upkeep.heartbeat_monitor import Observer
from inference.worker.chore_runner import run_chore
from inference.worker.maintenance.heartbeat import Heartbeat
from inference.worker.maintenance.watchdog import Watchdog
from inference.worker.replicas.registry import ReplicaRegistry

logger = logging.getLogger(__name__)

MOST_REVOKED = 10_000  # most revoked jobs that are kept while the database is away
ROUND_S = settings.WORKER_SILENT_S / 3
FIGURES = (sample.record_sample, tally_rows.flush_tallies, rollup.roll_up_rows)


class Housekeeping(threading.Thread):
    """The thread that does the work that other workers left undone, and removes old data.

    It also ends this worker when it has stopped working.
    """

    def __init__(self, heartbeat: Heartbeat, replicas: ReplicaRegistry) -> None:
        super().__init__(name="housekeeping", daemon=True)
        self.heartbeat = heartbeat
        self.replicas = replicas
        self.watchdog = Watchdog()
        self.sweeper = retention.Sweeper()
        self._chores: list[Callable[[], object]] = [
            self.end_broken_worker,
            self._requeue_given_up_jobs,
            self._cancel_revoked_jobs,
            self._reconcile,
            self.sweeper.sweep,
            acts.continue_oldest_act,
            *FIGURES,
        ]
        self._observer = Observer()
        self._given_up: deque[UUID] = deque()
        self._revoked: deque[UUID] = deque(maxlen=MOST_REVOKED)
        self._stopping = threading.Event()
        self._woken = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            for chore in self._chores:
                run_chore(chore, self.heartbeat.node)
            self._wait_for_round()
        run_chore(tally_rows.flush_tallies, self.heartbeat.node)

    def add_chore(self, chore: Callable[[], object]) -> None:
        """Have something else done in each round. Its name is in the log."""
        self._chores.append(chore)

    def _wait_for_round(self) -> None:
        """Wait until the next round, and meanwhile do what the event loop leaves to this thread."""
        until = time.monotonic() + ROUND_S
        while self._woken.wait(max(0.0, until - time.monotonic())) and not self._stopping.is_set():
            self._woken.clear()
            run_chore(self._requeue_given_up_jobs, self.heartbeat.node)
            run_chore(self._cancel_revoked_jobs, self.heartbeat.node)
            run_chore(transitions.expire_jobs, self.heartbeat.node)

    def stop(self) -> None:
        self._stopping.set()
        self._woken.set()

    def mark_expired_soon(self) -> None:
        """Have expired jobs marked on their rows soon, since jobs that this worker held are past their deadline."""
        self._woken.set()

    def requeue_batch_jobs_soon(self, batches: Iterable[UUID]) -> None:
        """Have the rows of these batches queued again soon: the batches have ended, and do not run again here."""
        self._given_up.extend(batches)
        self._woken.set()

    def cancel_jobs_soon(self, jobs: Iterable[UUID]) -> None:
        """Have jobs cancelled soon that an operator has revoked by Celery's remote control."""
        self._revoked.extend(jobs)
        self._woken.set()

    def _cancel_revoked_jobs(self) -> None:
        while self._revoked:
            transitions.cancel_jobs_with_parts([self._revoked[0]])
            self._revoked.popleft()

    def _requeue_given_up_jobs(self) -> None:
        while self._given_up:
            transitions.requeue_lost_jobs(Q(batch=self._given_up[0]))
            self._given_up.popleft()

    def _reconcile(self) -> None:
        reconcile.reconcile(database_up_s=self.heartbeat.database_up_s, observer=self._observer)

    def end_broken_worker(self) -> None:
        """End the worker at once if its main process no longer works: its supervisor starts another."""
        snapshot = self.heartbeat.make_snapshot()
        # This raises while the broker is away or full, for which the event loop itself waits. The lengths of queues
        # can be read from a full broker.
        publisher.ping_broker()
        consumed = [get_queue_name(name) for name in self.replicas.unpaused_models.intersection(snapshot.model_names)]
        waiting = sum(publisher.count_messages(consumed).values())
        reason = self.watchdog.find_reason_to_end(
            now=time.monotonic(),
            looped_at=snapshot.looped_at,
            waiting=waiting,
            held=snapshot.held,
            busy=snapshot.replicas_busy,
            ready=snapshot.replicas_ready,
        )
        if reason:
            logger.critical("worker=%s exits to be started again: %s", self.heartbeat.node, reason)
            faulthandler.dump_traceback(file=2, all_threads=True)
            os._exit(os.EX_SOFTWARE)
