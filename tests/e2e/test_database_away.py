"""A PostgreSQL that restarts, or stops answering, under many clients: each is answered meanwhile, and all goes on."""

from __future__ import annotations

import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

from django.contrib.auth import get_user_model
from django.test import tag

from api.models import ApiKey
from tests import databases
from tests.conditions import eventually
from tests.faults.load import Load, crowd
from tests.postgres import Postgres
from tests.second_look import TAG
from tests.stack import Stack

MODELS = """
[echo]
engine = "tests.echo:EchoEngine"
max_queued = 1000000
"""
CLIENTS, PER_S = 120, 300


@tag(TAG)
class DatabaseAway(unittest.TestCase):
    server: Postgres
    stack: Stack
    keys: list[dict[str, str]]
    pool_size = 4

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = cls.enterClassContext(databases.postgres())
        environment = {
            "DATABASE_URL": cls.server.url(), "DATABASE_POOL_SIZE": str(cls.pool_size),
            "API_KEY_REQUIRED": "1", "API_KEY_MAX_QUEUED": "0",
        }  # fmt: skip
        cls.stack = cls.enterClassContext(Stack(models=MODELS, workers=0, environment=environment))
        users = get_user_model().objects.using(cls.stack.alias)
        cls.keys = [cls.new_key(users.create(username=f"owner{number}", is_staff=True)) for number in range(8)]

    @classmethod
    def new_key(cls, owner: Any) -> dict[str, str]:
        return {"Authorization": f"Bearer {ApiKey.objects.db_manager(cls.stack.alias).issue_key(owner=owner)[1]}"}

    def load(self) -> Load:
        return Load(self.stack.port, lambda: "text", per_s=PER_S, clients=CLIENTS, headers=crowd(self.keys))

    def status(self, method: str, path: str, body: Any = None) -> int:
        return self.stack.request(method, path, body, headers=self.keys[0]).status

    def test_it_serves_again_under_the_load_once_the_database_is_back(self) -> None:
        with self.load() as load:
            eventually(lambda: load.result.statuses[202] > 100, "jobs are accepted")
            self.server.stop()
            eventually(lambda: load.result.statuses[503] > 50, "the database is away")
            self.server.start()
            before = load.result.statuses[202]
            eventually(lambda: load.result.statuses[202] > before + 100, "jobs are accepted again")
        self.assertEqual(set(load.result.statuses), {202, 503})

    def test_a_restart_costs_an_idle_service_no_request(self) -> None:
        with self.load() as load:
            eventually(lambda: load.result.statuses[202] > 100, "the pool is full")
        self.server.stop()
        self.server.start()
        answers = [self.status("GET", "/v1/jobs") for _ in range(2 * self.pool_size)]
        self.assertEqual(set(answers), {200})
        self.assertEqual(self.status("POST", "/v1/jobs", {"model": "echo", "inputs": "x"}), 202)

    def test_no_request_waits_for_a_database_that_is_stopped(self) -> None:
        """All are answered before it goes on."""
        with self.load() as load:
            eventually(lambda: load.result.statuses[202] > 100, "the pool is full")
        requests: tuple[tuple[str, str, Any], ...] = (
            ("GET", "/v1/jobs", None),
            ("POST", "/v1/jobs", {"model": "echo", "inputs": "x"}),
            ("GET", f"/v1/jobs/{uuid4()}", None),
            ("POST", "/v1/jobs/bulk", {"model": "echo", "inputs": ["x"]}),
            ("GET", "/readyz", None),
            ("GET", "/metrics", None),
        )
        with self.server.paused():
            with ThreadPoolExecutor(len(requests)) as clients:
                answers = list(clients.map(lambda request: self.status(*request), requests))
            self.assertEqual(answers, [503] * len(requests))
            with self.load() as load:
                eventually(lambda: load.result.statuses[503] > CLIENTS, "all are refused")
            self.assertEqual(set(load.result.statuses), {503})
        with self.load() as load:
            eventually(lambda: load.result.statuses[202] > 100, "jobs are accepted again")


class DatabaseAwayFromALargePool(DatabaseAway):
    pool_size = 32
