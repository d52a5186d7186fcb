"""What every worker does beside its jobs, every few seconds; in its own thread: a long round delays no heartbeat."""

import faulthandler
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from uuid import UUID

from django.conf import settings
from django.db.models import Q

from inference.broker import publish
from inference.broker.address import queue_of
from inference.figures import fold, ledger, sample
from inference.store import transitions
from inference.upkeep import acts, reconcile, retention
from inference.upkeep.observer import Observer
from inference.worker.chores import run_chore
from inference.worker.maintenance.heartbeat import Heartbeat
from inference.worker.maintenance.watchdog import Watchdog
from inference.worker.replicas.registry import ReplicaRegistry

logger = logging.getLogger(__name__)

MOST_REVOKED = 10_000  # while the database is away
ROUND_S = settings.WORKER_SILENT_S / 3
FIGURES = (sample.sample, ledger.flush, fold.fold)


class Housekeeping(threading.Thread):
    """Finds what others left undone, removes what is old, and ends this worker when it has stopped working."""

    def __init__(self, heartbeat: Heartbeat, replicas: ReplicaRegistry) -> None:
        super().__init__(name="housekeeping", daemon=True)
        self.heartbeat = heartbeat
        self.replicas = replicas
        self.watchdog = Watchdog()
        self.sweeper = retention.Sweeper()
        self.chores = [
            self.watch,
            self._give_back,
            self._cancel,
            self._reconcile,
            self.sweeper.sweep,
            acts.work,
            *FIGURES,
        ]
        self._observer = Observer()
        self._given_up: deque[UUID] = deque()
        self._revoked: deque[UUID] = deque(maxlen=MOST_REVOKED)
        self._stopping = threading.Event()
        self._woken = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            for chore in self.chores:
                run_chore(chore, self.heartbeat.node)
            self._rest()
        run_chore(ledger.flush, self.heartbeat.node)

    def _rest(self) -> None:
        """Until the next round, but for what the event loop has left to be done."""
        until = time.monotonic() + ROUND_S
        while self._woken.wait(max(0.0, until - time.monotonic())) and not self._stopping.is_set():
            self._woken.clear()
            run_chore(self._give_back, self.heartbeat.node)
            run_chore(self._cancel, self.heartbeat.node)
            run_chore(transitions.expire, self.heartbeat.node)

    def stop(self) -> None:
        self._stopping.set()
        self._woken.set()

    def expire_soon(self) -> None:
        """Jobs that this worker held are past their deadline: their rows are to say so."""
        self._woken.set()

    def give_back(self, batches: Iterable[UUID]) -> None:
        """Soon the rows of these batches are queued again: they are over, and not run again here."""
        self._given_up.extend(batches)
        self._woken.set()

    def cancel(self, jobs: Iterable[UUID]) -> None:
        """Soon, as an operator wants it by Celery's `revoke`."""
        self._revoked.extend(jobs)
        self._woken.set()

    def _cancel(self) -> None:
        while self._revoked:
            transitions.cancel_many([self._revoked[0]])
            self._revoked.popleft()

    def _give_back(self) -> None:
        while self._given_up:
            transitions.give_back_lost(Q(batch=self._given_up[0]))
            self._given_up.popleft()

    def _reconcile(self) -> None:
        reconcile.reconcile(answering_s=self.heartbeat.answering_s, observer=self._observer)

    def watch(self) -> None:
        """Leave at once when the main process no longer works: its supervisor starts another."""
        if self.heartbeat.snapshot is None:
            return
        snapshot = self.heartbeat.snapshot()
        publish.ping()  # the event loop waits for a broker that is away, or has no room: that one still counts queues
        consumed = [queue_of(name) for name in self.replicas.serving.intersection(snapshot.model_names)]
        waiting = sum(publish.queue_lengths(consumed).values())
        reason = self.watchdog.reason(
            now=time.monotonic(), looped_at=snapshot.looped_at, waiting=waiting, held=snapshot.held,
            busy=snapshot.replicas_busy, ready=snapshot.replicas_ready,
        )  # fmt: skip
        if reason:
            logger.critical("worker=%s exits to be started again: %s", self.heartbeat.node, reason)
            faulthandler.dump_traceback(file=2, all_threads=True)
            os._exit(os.EX_SOFTWARE)
