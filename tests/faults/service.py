"""The service under test: the stack of the end-to-end tests, with a catalog for faults and quick recovery."""

from __future__ import annotations

import contextlib
import http.client
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import redis

from inference.models import TERMINAL, Worker
from inference.status.workers import PRESENT
from tests import databases
from tests.conditions import eventually
from tests.faults.backends import POOL_SIZE, POSTGRES, RABBITMQ, Backends, MessageBroker, RabbitBroker, RedisBroker
from tests.faults.engines import CALLS
from tests.ports import HOST
from tests.stack import Stack
from tools.launcher import programs
from tools.launcher.supervisor import Child

QUICK = {"WORKER_HEARTBEAT_S": "0.5", "WORKER_SILENT_S": "6"}  # a dead worker is found in seconds, not in 15

CATALOG = """
[echo]                     # batches of 8 in 100 ms
engine = "tests.faults.engines:RecordingEcho"
max_batch_size = 8
time_limit_s = 10
max_queued = 100000
options = { fixed_ms = 100 }

[slow]                     # long enough to be stopped in the middle
engine = "tests.faults.engines:RecordingEcho"
max_batch_size = 8
time_limit_s = 90                 # longer than it is stopped for, also on a busy machine
options = { fixed_ms = 700 }

[batched]                  # waits until a batch is full, so that it is known who shares it
engine = "tests.faults.engines:RecordingEcho"
max_batch_size = 8
max_wait_ms = 30000
time_limit_s = 20

[wide]                     # the same, with 32
engine = "tests.faults.engines:RecordingEcho"
max_batch_size = 32
max_wait_ms = 30000
time_limit_s = 20

[hasty]                    # the same as batched, with a limit that can be waited for
engine = "tests.faults.engines:RecordingEcho"
max_batch_size = 8
max_wait_ms = 30000
time_limit_s = 2

[brief]                    # the same limit, and nobody waits for company
engine = "tests.faults.engines:RecordingEcho"
max_batch_size = 8
time_limit_s = 2
"""


class Service(Stack):
    def __init__(
        self,
        *,
        quick: bool = True,
        models: str = CATALOG,
        workers: int = 1,
        environment: Mapping[str, str] | None = None,
        worker_module: str = "celery",
        blocking_threads: int = 64,
        backends: Backends | None = None,
        **options: Any,
    ) -> None:
        self.worker_module = worker_module
        self.blocking_threads = blocking_threads
        self.backends = backends or Backends()
        self.keys: dict[str, dict[str, str]] = {}
        self.database = databases.postgres() if self.backends.database == POSTGRES else None
        self.rabbit = RabbitBroker() if self.backends.broker == RABBITMQ else None
        self.broker: MessageBroker = self.rabbit or RedisBroker(self)
        pace = {**(QUICK if quick else {}), "WORK_AHEAD": str(int(self.backends.ahead))}
        super().__init__(models=models, workers=workers, environment={**pace, **(environment or {})}, **options)

    def make_database(self) -> None:
        """And what else runs beside the programs."""
        if self.rabbit:
            self.rabbit.start()
            self.environment["BROKER_URL"] = self.rabbit.url
        if self.database:
            self.database.start()
            databases.attach(self.alias, self.database.url())
            url = {"DATABASE_URL": self.database.url(), "DATABASE_POOL_SIZE": POOL_SIZE}
            self.environment = {**url, **self.environment}
        else:
            super().make_database()

    def close(self) -> None:
        super().close()
        if self.rabbit:
            self.rabbit.server.close()
        if self.database:
            self.database.__exit__()

    def start_web(self, **environment: str) -> Child:
        program = programs.make_web_server(host=HOST, port=self.port, blocking_threads=self.blocking_threads)
        return self.start(replace(program, environment=environment))

    def start_worker(self, name: str = "worker1", **environment: str) -> Child:
        program = programs.make_worker(name=name, devices=self.devices, options=self.worker_options)
        command = tuple(self.worker_module if part == "celery" else part for part in program.command)
        return self.start(replace(program, command=command, environment=environment))

    def restart(self, name: str, **environment: str) -> None:
        """As a supervisor does, in place of one that has ended; without waiting until it is ready."""
        self.children[name].kill()
        if name == "broker":
            self.start_broker()
        elif name == "web":
            self.start_web(**environment)
        else:
            self.start_worker(name, **environment)

    def restart_ended(self) -> list[str]:
        """Start again what has ended by itself; the names of those."""
        ended = [name for name, child in self.children.items() if child.exit_code is not None]
        for name in ended:
            self.restart(name)
        return ended

    # As its clients see it

    def serves(self, model: str) -> bool:
        """Whether a client with a key has an answer to a call that it may repeat."""
        return self.probe(model) == 200

    def probe(self, model: str) -> int | None:
        """The status that such a call is answered with, None without an answer."""
        headers = {**self.key("prober"), "Idempotency-Key": str(uuid4())}
        with contextlib.suppress(OSError, http.client.HTTPException):
            body = {"inputs": "does it serve?"}
            return self.post(f"/v1/models/{model}?timeout=5", body, headers=headers, timeout_s=10).status
        return None

    def key(self, owner: str) -> dict[str, str]:
        """The header of a client with a key of this owner."""
        if owner not in self.keys:
            self.keys[owner] = {"Authorization": f"Bearer {self.issue_key(owner)}"}
        return self.keys[owner]

    # Beside the service

    def flush(self) -> None:
        """The embedded broker loses its data."""
        with contextlib.closing(self.redis()) as client:
            client.flushall()

    def redis(self) -> redis.Redis:
        """Straight to the server, with a connection a call."""
        return redis.Redis.from_url(f"unix://{self.socket}", socket_timeout=5.0)

    def living_workers(self) -> list[Worker]:
        pids = [child.pid for name, child in self.children.items() if name.startswith("worker")]
        return list(self.workers.filter(pid__in=pids, state__in=PRESENT))

    def worker_row(self, name: str = "worker1") -> Worker:
        return self.workers.get(pid=self.children[name].pid)

    def replicas_alive(self, name: str = "worker1") -> bool:
        """Whether all replicas of the worker have reported, and live."""
        row = self.worker_row(name)
        pids = [replica.pid for replica in row.replicas.values()]
        return len(pids) == row.replicas_total == row.replicas_ready and all(pid and _is_alive(pid) for pid in pids)

    def whole_again(self) -> None:
        """Wait until every worker has all its replicas."""
        self.ready()
        names = [name for name in self.children if name.startswith("worker")]
        eventually(lambda: all(map(self.replicas_alive, names)), "all replicas are back")

    def engine_calls(self) -> list[tuple[int, int]]:
        """(pid, items) of each engine call that was begun."""
        file = self.folder / CALLS
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(pid), int(items)) for pid, items in map(str.split, lines)]

    def unfinished(self, ids: Iterable[UUID]) -> int:
        return self.jobs.filter(pk__in=list(ids)).exclude(status__in=TERMINAL).count()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
