"""Rows 31, 37 and 38: children and workers that cannot load a model, or have not loaded it yet."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from django.db.models import Max

from inference.models import Status
from tests.faults.engines import CANNOT_LOAD
from tests.faults.fault import Fault
from tests.faults.service import CATALOG
from tests.faults.trial import Trial

FRAGILE = """
[fragile]
engine = "tests.faults.engines:Fragile"
max_batch_size = 8
options = { fixed_ms = 400 }
"""
HELD_LOADING = """
[echo]                     # while its gate is there
engine = "tests.faults.engines:GatedEcho"
max_batch_size = 8
options = { fixed_ms = 100 }
"""


@contextlib.contextmanager
def not_loading(trial: Trial) -> Iterator[None]:
    """Who loads the fragile model now, fails."""
    file = trial.service.folder / CANNOT_LOAD
    file.touch()
    try:
        yield
    finally:
        file.unlink()


class ChildCannotLoad(Fault):
    """It is idle all the time: whoever gives it calls because of that gives it all of them."""

    row, title, ci, full = "31", "a child that cannot load again, beside healthy ones", 1, 10
    takes_s = 17.0
    options = {"workers": 2, "models": CATALOG + FRAGILE}
    chunk = 5
    recovery_limit_s = 90.0  # it tries again after pauses that grow
    ATTEMPTS = 3

    def trial(self, trial: Trial) -> None:
        trial.service.whole_again()
        with not_loading(trial), trial.load(per_s=20, model="fragile") as load:
            trial.until_running("fragile")
            os.kill(trial.service.replica_pids()[0], signal.SIGKILL)
            trial.broken()
            trial.pause(10.0, 14.0)
            self.ready_and_served_agree(trial)
        trial.add(load)
        trial.healed()
        trial.service.whole_again()
        self.ready_and_served_agree(trial)

        names = trial.service.worker_row("worker1").model_names
        trial.expect("fragile" in names, f"the worker that can load it again serves {names}")

    def ready_and_served_agree(self, trial: Trial) -> None:
        ready = trial.service.get("/readyz").status == 200
        trial.expect(ready, "/readyz names a model that other children serve")
        status = trial.service.probe("fragile")
        # 504 where the machine is too busy to answer in time: nobody was refused
        trial.expect(status in (200, 504), f"a blocking call is answered {status}, though others serve its model")

    def after(self, trial: Trial) -> None:
        most = trial.service.jobs.filter(pk__in=trial.accepted).aggregate(most=Max("attempts"))["most"]
        trial.measured["attempts"] = most
        trial.expect(most <= self.ATTEMPTS, f"a job was tried {most} times")


class ModelCannotLoad(Fault):
    """Its jobs wait for whoever can, and no restart counts against them."""

    row, title, ci, full = "37", "a model that cannot be loaded through five restarts, then can", 1, 5
    takes_s = 36.0
    options = {"models": CATALOG + FRAGILE}
    chunk = 5
    RESTARTS, JOBS = 5, 14

    def trial(self, trial: Trial) -> None:
        with not_loading(trial):
            self.restart(trial)
            kept = trial.submit_some(self.JOBS, model="fragile")
            for number in range(self.RESTARTS):
                good = trial.submit_some(8)
                trial.until(lambda good=good: not trial.service.unfinished(good), "the good model is served", 60)
                self.restart(trial, kill=bool(number % 2))
            untouched = trial.service.jobs.filter(pk__in=kept, status=Status.QUEUED, attempts=0, recoveries=0)
            trial.expect(untouched.count() == len(kept), "jobs were touched that nobody could run")
        self.restart(trial)
        trial.healed()

    def restart(self, trial: Trial, *, kill: bool = False) -> None:
        if not kill:
            trial.service.children["worker1"].stop()
        trial.service.restart("worker1")
        trial.service.ready()


class Joining(Fault):
    """Whoever takes messages that it cannot run yet makes them wait for as long as it loads."""

    row, title, ci, full = "38", "a worker joins, and two are restarted one after the other, while others serve", 1, 10
    options = {"models": HELD_LOADING, "workers": 2}
    alone = True
    chunk = 5
    may_repeat = False
    LOADING_S, MORE_S = 3.0, 1.0
    MEANWHILE = 40  # jobs that are run while a worker loads

    def trial(self, trial: Trial) -> None:
        name = trial.random.choice(trial.service.worker_names)
        trial.service.children[name].stop()
        quiet = self.longest_wait_s(trial, lambda: trial.pause(4.0, 6.0))
        joined = self.longest_wait_s(trial, lambda: self.join(trial, name))
        rolled = self.longest_wait_s(trial, lambda: self.roll(trial))
        trial.broken()
        for what, longest in (("a worker joined", joined), ("workers were restarted", rolled)):
            trial.measured[f"more s of wait while {what}"] = longest - quiet
            trial.in_time(longest - quiet, self.MORE_S, f"more wait while {what}")

    def longest_wait_s(self, trial: Trial, act: Callable[[], object]) -> float:
        """From submission to start, of the jobs that came while `act` ran."""
        with trial.load(per_s=40) as load:
            act()
        mine = trial.add(load).accepted
        trial.until(lambda: not trial.service.unfinished(mine), "the jobs end", 60)
        return max(trial.took_s(mine, "created_at", "started_at"))

    def join(self, trial: Trial, name: str) -> None:
        """Start the worker, whose models are loaded only once the jobs that came meanwhile have ended."""
        trial.service.hold("held-echo")
        pid = trial.service.start_worker(name).pid
        trial.until(trial.service.workers.filter(pid=pid).exists, "the worker has reported")
        jobs = trial.submit_some(self.MEANWHILE)
        trial.until(lambda: not trial.service.unfinished(jobs), "others run what comes while a worker loads", 60)
        if not trial.quick:
            trial.pause(self.LOADING_S, self.LOADING_S)
        trial.service.release("held-echo")
        trial.service.whole_again()

    def roll(self, trial: Trial) -> None:
        for name in trial.service.worker_names:
            code = trial.service.children[name].stop()
            trial.expect(code == 0, f"{name} left with {code}")
            self.join(trial, name)
