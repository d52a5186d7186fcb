"""Rows 29, 32, 35 and 36: what is away for long, or is gone without a word, or comes back to a crowd."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from inference.models import Status
from tests.faults import database
from tests.faults.broker import answers_meanwhile
from tests.faults.database import DatabaseAway, OnPostgres
from tests.faults.fault import Fault
from tests.faults.load import Load, crowd
from tests.faults.proxy import Mode, Proxy
from tests.faults.service import CATALOG, Service
from tests.faults.trial import ANSWER_LIMIT_S, Trial
from tests.ports import HOST

SERVES_AGAIN_S = 10.0
MANY = """
[echo]                     # quick: the crowd is to wait for the database, not for the model
engine = "tests.faults.engines:RecordingEcho"
max_batch_size = 64
max_queued = 100000
options = { fixed_ms = 20 }
"""
LONG = """
[long]
engine = "tests.faults.engines:RecordingEcho"
max_batch_size = 1         # each replica runs one, and there is no second round
time_limit_s = 180
options = {{ fixed_ms = {ms} }}
"""


class ComesBackToACrowd(OnPostgres):
    """120 clients with keys, who repeat nothing: whoever keeps a connection while it waits keeps the others out."""

    recovery_limit_s = 60.0  # of what was accepted
    chunk = 5
    CLIENTS, OWNERS = 120, 12
    AWAY_S, AFTER_S = 3.0, 14.0
    POOL = ""

    @contextlib.contextmanager
    def service(self) -> Iterator[Service]:
        environment = {"DATABASE_POOL_SIZE": self.POOL, "API_KEY_MAX_QUEUED": "0"}
        with self.make(models=MANY, environment=environment, blocking_threads=256) as service:
            yield service

    def trial(self, trial: Trial) -> None:
        with self.crowd(trial) as load:
            trial.pause(1.0, 2.0)
            with database.stopped(trial.service):
                time.sleep(self.AWAY_S)
            trial.healed()
            self.until_accepted(trial, load)
        took_s = trial.add(load, refusals=[503], answer_limit_s=ANSWER_LIMIT_S).refused_at - (trial.healed_at or 0)
        trial.measured["s until nobody was refused"] = max(0.0, took_s)
        trial.in_time(took_s, SERVES_AGAIN_S, "until nobody was refused")

    def until_accepted(self, trial: Trial, load: Load) -> None:
        """Wait until the crowd is served again, and for as long as it may be refused where that is measured."""
        accepted, before = load.result.statuses, load.result.statuses[202]
        trial.until(lambda: accepted[202] >= before + self.CLIENTS, "the crowd is accepted again")
        if not trial.quick:
            time.sleep(self.AFTER_S)

    def crowd(self, trial: Trial) -> Load:
        owners = [trial.service.key(f"owner {number}") for number in range(self.OWNERS)]
        return trial.load(per_s=50, clients=self.CLIENTS, headers=crowd(owners))


class PoolOfFour(ComesBackToACrowd):
    row, title, ci, full = "29", "PostgreSQL restarts under 120 clients with keys, a pool of 4", 1, 10
    takes_s = 20.0
    POOL = "4"


class PoolOfThirtyTwo(ComesBackToACrowd):
    row, title, ci, full = "29", "the same, a pool of 32", 0, 10
    POOL = "32"


class BrokerAwayForLong(Fault):
    """A worker that waits for its broker is not one that hangs."""

    row, title, ci, full = "32", "broker away for longer than the watchdog waits: 100 s, 30 s in a quick run", 1, 5
    takes_s = 38.0
    chunk = 5
    AWAY_S, QUICK_AWAY_S = 100.0, 30.0

    @contextlib.contextmanager
    def service(self) -> Iterator[Service]:
        with self.make(worker_module="tests.faults.hasty_watchdog" if self.quick else "celery") as service:
            yield service

    def trial(self, trial: Trial) -> None:
        before = self.processes(trial)
        with trial.load(per_s=10) as load:
            trial.pause(0.3, 1.0)
            trial.service.broker.kill()
            answers_meanwhile(trial, self.QUICK_AWAY_S if trial.quick else self.AWAY_S)
            trial.service.broker.start()
            trial.healed()
            trial.pause(0.2, 0.6)
        trial.add(load, answer_limit_s=ANSWER_LIMIT_S)
        self.before = before

    def after(self, trial: Trial) -> None:
        trial.expect(not trial.service.restart_ended(), "a program has ended")
        trial.service.ready()
        trial.expect(self.processes(trial) == self.before, "a worker or its children are not the same any more")

    def processes(self, trial: Trial) -> list[int]:
        return [trial.service.children["worker1"].pid, *trial.service.replica_pids()]


class HostLost(OnPostgres, DatabaseAway):
    """Nobody is told: the packets are dropped, or the server stands still."""

    row, title, ci, full = "35", "the database's host is lost: packets dropped, or all its processes stopped", 1, 10
    takes_s = 28.0
    may_repeat = True
    chunk = 5
    AWAY_S, QUICK_AWAY_S = 30.0, 12.0

    @contextlib.contextmanager
    def service(self) -> Iterator[Service]:
        with Proxy() as self.proxy:
            url = f"postgres://inference@{HOST}:{self.proxy.port}/postgres"
            service = self.make(environment={"DATABASE_URL": url})
            self.proxy.target = database.server(service).folder / ".s.PGSQL.5432"
            with service:
                yield service

    def away(self, trial: Trial) -> contextlib.AbstractContextManager[None]:
        return self.proxy.failing(Mode.LOST) if trial.number % 2 == 0 else database.server(trial.service).paused()

    def answered_in_time(self, trial: Trial) -> None:
        until = time.monotonic() + (self.QUICK_AWAY_S if trial.quick else self.AWAY_S)
        while time.monotonic() < until:
            for path in ("/v1/jobs", "/readyz"):
                self.answered(trial, path)

    def answered(self, trial: Trial, path: str) -> None:
        started = time.monotonic()
        status = trial.service.get(path).status
        trial.expect(status in (200, 503), f"GET {path} was answered with {status}")
        trial.in_time(time.monotonic() - started, ANSWER_LIMIT_S, f"GET {path}")


class LongerThanSilence(Fault):
    """Nobody could see a heartbeat: silence says nothing."""

    row, title, ci, full = "36", "database away for longer than a worker may be silent, long batches run", 1, 5
    takes_s = 13.0
    chunk = 5
    may_repeat = False
    settle_limit_s = 300.0
    recovery_limit_s = 180.0  # the batches go on, one after the other where a worker fetched several
    MOST = 8  # jobs, until both workers run one

    @contextlib.contextmanager
    def service(self) -> Iterator[Service]:
        self.away_s = 8.0 if self.quick else 30.0
        models = CATALOG + LONG.format(ms=int(1200 * self.away_s))
        with self.make(models=models, workers=2) as service:
            yield service

    def trial(self, trial: Trial) -> None:
        trial.service.whole_again()
        running = trial.service.jobs.filter(model="long", status=Status.RUNNING).order_by().values("worker").distinct()
        while len(trial.accepted) < self.MOST and running.count() < 2:
            trial.submit(trial.text(), model="long")
            trial.pause(1.0, 1.5)
        trial.until(lambda: running.count() == 2, "two workers run a job")
        with database.away(trial.service):
            time.sleep(self.away_s)
        trial.healed()

    def after(self, trial: Trial) -> None:
        given_back = trial.service.jobs.filter(pk__in=trial.accepted, recoveries__gt=0).count()
        trial.expect(not given_back, f"{given_back} jobs of healthy workers were given back")
