"""More clients at once than a database takes connections: each is answered."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.conditions import PATIENCE_S
from tests.e2e.case import StackCase
from tools.launcher import supervisor

CLIENTS = 250  # PostgreSQL takes 100 connections by default


class TestManyClients(StackCase):
    options = {"environment": {"DATABASE_ANSWER_S": f"{PATIENCE_S:g}"}}  # a slow machine has the time

    @classmethod
    def setUpClass(cls) -> None:
        supervisor.raise_open_files_limit()
        super().setUpClass()

    def test_clients_that_read_share_the_connections(self) -> None:
        with ThreadPoolExecutor(CLIENTS) as clients:
            answers = clients.map(lambda _: self.stack.get("/v1/jobs?limit=1").status, range(2 * CLIENTS))
            self.assertEqual(Counter(answers), {200: 2 * CLIENTS})

    def test_clients_that_wait_hold_no_connection(self) -> None:
        def run(number: int) -> int | str:
            answer = self.stack.call(f"text {number}")
            return answer.status if answer.status == 200 else f"{answer.status} {answer.json['detail']}"

        with ThreadPoolExecutor(CLIENTS) as clients:
            self.assertEqual(Counter(clients.map(run, range(2 * CLIENTS))), {200: 2 * CLIENTS})
