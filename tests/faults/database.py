"""Row 15: the database is locked, or stopped, for half a minute."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator

from django.db import connections

from tests.faults.fault import Fault
from tests.faults.service import Service
from tests.faults.trial import ANSWER_LIMIT_S, Trial
from tests.postgres import Postgres, program

AWAY_S = 30.0
REFUSED_S = 5.0  # by then nothing that was asked before the database went is still on its way


class DatabaseAway(Fault):
    recovery_limit_s = 60.0
    chunk = 2

    def trial(self, trial: Trial) -> None:
        with trial.load(per_s=40, clients=20) as load:
            trial.until_running()
            trial.pause(0.1, 0.5)
            with self.away(trial):
                self.refused_in_time(trial)
            trial.healed()
            trial.pause(0.5, 1.5)
        trial.add(load, refusals=[503], answer_limit_s=ANSWER_LIMIT_S)
        trial.service.restart_ended()

    def away(self, trial: Trial) -> contextlib.AbstractContextManager[None]:
        raise NotImplementedError

    def refused_in_time(self, trial: Trial) -> None:
        """503 with Retry-After, once what was in flight has been refused."""
        until = time.monotonic() + AWAY_S
        time.sleep(REFUSED_S)
        while time.monotonic() < until:
            started = time.monotonic()
            answer = trial.service.post("/v1/jobs", {"model": "echo", "inputs": "refused"})
            took_s = time.monotonic() - started
            trial.expect(took_s <= ANSWER_LIMIT_S, f"POST took {took_s:.1f} s")
            trial.expect(answer.status == 503, f"POST was answered with {answer.status} {answer.body[:200]!r}")
            trial.expect("retry-after" in answer.headers, "the answer has no Retry-After")
            time.sleep(0.5)


class Locked(DatabaseAway):
    row, title, ci, full = "15", "SQLite locked for 30 s", 3, 10

    @contextlib.contextmanager
    def away(self, trial: Trial) -> Iterator[None]:
        connection = sqlite3.connect(trial.service.folder / "db.sqlite3", timeout=10, isolation_level=None)
        connection.execute("BEGIN EXCLUSIVE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")
            connection.close()


class Stopped(DatabaseAway):
    row, title, ci, full = "15", "PostgreSQL stopped for 30 s", 2, 10

    def unavailable(self) -> str:
        try:
            program("postgres")
        except FileNotFoundError as error:
            return str(error)
        return ""

    @contextlib.contextmanager
    def service(self) -> Iterator[Service]:
        with Postgres() as self.server, Service(
            quick=self.quick, environment={"DATABASE_URL": self.server.url()}
        ) as service:  # fmt: skip
            yield service

    @contextlib.contextmanager
    def away(self, trial: Trial) -> Iterator[None]:
        self.server.stop()
        try:
            yield
        finally:
            self.server.start()
            connections[trial.service.alias].close()
