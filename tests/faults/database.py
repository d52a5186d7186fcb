"""Row 15: the database is locked, or stopped, for a while."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator

from django.db import connections

from tests.faults.backends import POSTGRES, SQLITE
from tests.faults.fault import Fault
from tests.faults.service import Service
from tests.faults.trial import ANSWER_LIMIT_S, Trial
from tests.postgres import Postgres
from tests.stack import Stack

AWAY_S, QUICK_AWAY_S = 30.0, 12.0
REFUSED_S = 5.0  # by then nothing that was asked before the database went is still on its way


def server(service: Service) -> Postgres:
    assert service.database
    return service.database


@contextlib.contextmanager
def locked(service: Stack) -> Iterator[None]:
    connection = sqlite3.connect(service.folder / "db.sqlite3", timeout=10, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


@contextlib.contextmanager
def stopped(service: Service) -> Iterator[None]:
    """As in a restart: everybody is disconnected."""
    server(service).stop()
    try:
        yield
    finally:
        server(service).start()
        connections[service.alias].close()


def away(service: Service) -> contextlib.AbstractContextManager[None]:
    return stopped(service) if service.database else locked(service)


class DatabaseAway(Fault):
    recovery_limit_s = 60.0
    may_repeat = False  # workers keep their results, and nobody's jobs are taken by who is back first
    chunk, takes_s = 2, 17.0

    def trial(self, trial: Trial) -> None:
        with trial.load(per_s=40, clients=20) as load:
            trial.until_running()
            trial.pause(0.1, 0.5)
            with self.away(trial):
                self.answered_in_time(trial)
            trial.healed()
            trial.pause(0.5, 1.5)
        trial.add(load, refusals=[503], answer_limit_s=ANSWER_LIMIT_S)
        trial.service.restart_ended()

    def away(self, trial: Trial) -> contextlib.AbstractContextManager[None]:
        return away(trial.service)

    def answered_in_time(self, trial: Trial) -> None:
        """503 with Retry-After, once what was in flight has been refused."""
        until = time.monotonic() + (QUICK_AWAY_S if trial.quick else AWAY_S)
        time.sleep(REFUSED_S)
        while time.monotonic() < until:
            started = time.monotonic()
            answer = trial.service.post("/v1/jobs", {"model": "echo", "inputs": "refused"})
            took_s = time.monotonic() - started
            trial.in_time(took_s, ANSWER_LIMIT_S, "POST")
            trial.expect(answer.status == 503, f"POST was answered with {answer.status} {answer.body[:200]!r}")
            trial.expect("retry-after" in answer.headers, "the answer has no Retry-After")
            time.sleep(0.5)


class Locked(DatabaseAway):
    row, title, ci, full = "15", "SQLite locked for 30 s, 12 s in a quick run", 1, 10
    shares = True
    databases = (SQLITE,)


class OnPostgres(Fault):
    """Played on PostgreSQL, whatever the others are played on."""

    databases = (POSTGRES,)


class Stopped(OnPostgres, DatabaseAway):
    row, title, ci, full = "15", "PostgreSQL stopped for 30 s, 12 s in a quick run", 1, 10
