"""Rows 1 to 4, and 51: processes that are killed, asked to leave, or stopped for a while."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any
from uuid import UUID

from inference.models import Status, Worker
from tests.echo import Fail
from tests.faults.fault import Fault
from tests.faults.oracle import echoed_in_order
from tests.faults.trial import Trial

SUPERVISOR_DELAY_S = 1.0  # the first back-off of `manage.py up`


def is_writable(database: Path) -> bool:
    with contextlib.closing(sqlite3.connect(database, timeout=1.0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True


class WorkerKilled(Fault):
    row, title, ci, full = "1", "SIGKILL of the whole worker under load", 2, 100
    takes_s, shares = 9.0, True

    def trial(self, trial: Trial) -> None:
        with trial.load(per_s=120, count=240) as load:
            trial.pause(0.05, 2.0)
            trial.service.children["worker1"].kill()
            trial.broken()
            trial.pause(0.0, SUPERVISOR_DELAY_S)
            trial.service.restart("worker1")
            load.finish()
        trial.add(load)
        trial.service.ready()


class WorkerKilledUnderLists(WorkerKilled):
    row, title, ci, full = "1", "the same, a tenth of the jobs lists of up to three batches", 1, 30
    takes_s = 14.0
    recovery_limit_s = 45.0  # there is more to do

    def trial(self, trial: Trial) -> None:
        trial.right = echoed_in_order
        trial.make = lambda: self.inputs(trial)
        super().trial(trial)

    def inputs(self, trial: Trial) -> Any:
        if trial.random.random() > 0.1:
            return trial.text()
        return [trial.text() for _ in range(trial.random.randrange(9, 25))]


class ChildKilled(Fault):
    row, title, ci, full = "2", "SIGKILL of one child in a batch", 2, 50
    shares = True
    chunk = 25

    def trial(self, trial: Trial) -> None:
        trial.service.whole_again()
        alone = trial.number % 3 == 0  # then it is tried once more, since it may not be its fault
        trial.submit_some(1 if alone else 30, model="slow")
        begun = 1 if alone else 4  # the first batches hold what came first, later ones are full
        trial.until(lambda: len(trial.engine_calls()) >= begun, "a batch runs")
        trial.pause(0.0, 0.4)
        pid, _ = trial.engine_calls()[-1]
        os.kill(pid, signal.SIGKILL)
        trial.broken()


class RollingRestart(Fault):
    row, title, ci, full = "3", "SIGTERM, rolling restart of two workers", 1, 30
    takes_s, shares = 25.0, True
    options = {"workers": 2}
    chunk = 5
    may_repeat = False

    def trial(self, trial: Trial) -> None:
        with trial.load(per_s=60) as load:
            trial.pause(0.2, 1.0)
            trial.broken()
            for name in trial.service.worker_names:
                code = trial.service.children[name].stop()
                trial.expect(code == 0, f"{name} left with {code}")
                trial.service.restart(name)
                trial.service.ready()
            trial.healed()
        trial.add(load)


def stop_between_writes(trial: Trial, pid: int) -> None:
    """Stop a group of processes, but not in a write: SQLite's one lock would stay with it, and nobody could write."""
    while True:
        os.killpg(pid, signal.SIGSTOP)
        if trial.service.database or is_writable(trial.service.folder / "db.sqlite3"):
            return
        os.killpg(pid, signal.SIGCONT)
        trial.pause(0.0, 0.05)


class WorkerStopped(Fault):
    """The zombie comes back with outcomes of jobs that another worker has finished."""

    row, title, ci, full = "4", "SIGSTOP of a worker past its limit, then SIGCONT", 1, 30
    takes_s, shares = 7.0, True
    options = {"workers": 2}
    chunk = 5

    def trial(self, trial: Trial) -> None:
        ids = trial.submit_some(40, model="slow")
        zombie = trial.service.worker_row("worker1")
        held = trial.service.jobs.filter(status=Status.RUNNING, worker=zombie.pk)
        trial.until(held.exists, "the worker runs a batch")
        trial.pause(0.0, 0.5)
        stop_between_writes(trial, zombie.pid)
        claimed = set(held.values_list("pk", flat=True))
        trial.broken()
        try:
            trial.until(lambda: not trial.service.unfinished(ids), "the other worker finishes all", 60)
        finally:
            os.killpg(zombie.pid, signal.SIGCONT)
        self.zombie_is_refused(trial, claimed)

    def zombie_is_refused(self, trial: Trial, claimed: set[UUID]) -> None:
        stolen = trial.service.jobs.filter(pk__in=claimed, recoveries__gt=0).count()
        if stolen:
            trial.until(lambda: trial.logged("outcomes dropped"), "the zombie's outcomes are refused")
        alive = trial.service.worker_row("worker1")
        trial.until(lambda: trial.service.workers.get(pk=alive.pk).state == "ready", "the zombie serves again")


class WorkerPaused(Fault):
    """Nobody else takes the jobs meanwhile: their leases last longer."""

    row, title, ci, full = "51", "a worker, or its children alone, stopped for three times time_limit_s", 1, 10
    takes_s, shares = 12.0, True
    BESIDE, LIMIT_S = 8, 2.0  # of the model "brief"

    def trial(self, trial: Trial) -> None:
        trial.service.whole_again()
        trial.service.hold()
        try:
            for batch in (1, self.BESIDE):  # one job that is alone, and others together
                self.begin(trial, batch)
            worker = trial.service.worker_row()
            self.stop(trial, worker)
            trial.broken()
            trial.pause(3 * self.LIMIT_S, 3 * self.LIMIT_S)
        finally:
            trial.service.release()
        os.killpg(worker.pid, signal.SIGCONT)
        trial.healed()

    def begin(self, trial: Trial, batch: int) -> None:
        before = len(trial.engine_calls())
        inputs = [{"text": trial.text(), "fail": Fail.HELD} for _ in range(batch)]
        trial.submit_together(inputs, model="brief")
        trial.until(lambda: len(trial.engine_calls()) > before, "the engine runs")

    def stop(self, trial: Trial, worker: Worker) -> None:
        if trial.number % 2 == 0:
            stop_between_writes(trial, worker.pid)
            return
        for replica in worker.replicas.values():
            if replica.pid:
                os.kill(replica.pid, signal.SIGSTOP)
