"""Clients that submit numbered jobs over HTTP while something breaks, and remember what was accepted."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import UUID, uuid4

from tests.conditions import PATIENCE_S
from tests.ports import HOST

CONNECTION_FAILURE = 0  # in the place of a status: nobody answered


@dataclass(slots=True)
class Submissions:
    """What became of the requests."""

    accepted: dict[UUID, Any] = field(default_factory=dict)  # id: inputs
    statuses: Counter[int] = field(default_factory=Counter)
    bodies: dict[int, bytes] = field(default_factory=dict)  # the last of each status
    slowest_s: float = 0.0
    refused_at: float = 0.0  # since the epoch: when the last request began that was not accepted

    @property
    def attempted(self) -> int:
        return self.statuses.total()


class Load:
    """`with Load(...) as load:` submits from `clients` threads, `per_s` in all, until the block is left.

    `count` bounds the jobs; a client waits for its answer before it sends its next request. `headers` makes those of
    each request.
    """

    def __init__(
        self,
        port: int,
        make: Callable[[], Any],
        *,
        per_s: float,
        count: int = 1_000_000,
        model: str = "echo",
        clients: int = 6,
        headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.port, self.make, self.model = port, make, model
        self.headers = headers
        self.interval_s = 1.0 / per_s
        self.left = count
        self.result = Submissions()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._next_at = 0.0
        self._threads = [threading.Thread(target=self._submit_until_stopped, daemon=True) for _ in range(clients)]

    def __enter__(self) -> Self:
        self._next_at = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def finish(self) -> Self:
        """Let the clients send all `count` jobs."""
        for thread in self._threads:
            thread.join()
        return self

    def _submit_until_stopped(self) -> None:
        while (due_at := self._take_turn()) is not None:
            if self._stopping.wait(max(0.0, due_at - time.monotonic())):
                return
            self._submit(self.make())

    def _take_turn(self) -> float | None:
        with self._lock:
            if self.left <= 0 or self._stopping.is_set():
                return None
            self.left -= 1
            due_at, self._next_at = self._next_at, max(self._next_at, time.monotonic()) + self.interval_s
            return due_at

    def _submit(self, inputs: Any) -> None:
        began_at, started = time.time(), time.monotonic()
        headers = {"Content-Type": "application/json", **self.headers()}
        status, body = post(self.port, {"model": self.model, "inputs": inputs}, headers)
        with self._lock:
            self.result.slowest_s = max(self.result.slowest_s, time.monotonic() - started)
            self.result.statuses[status] += 1
            self.result.bodies[status] = body
            if status == 202:
                self.result.accepted[UUID(json.loads(body)["id"])] = inputs
            else:
                self.result.refused_at = max(self.result.refused_at, began_at)


def crowd(owners: Sequence[Mapping[str, str]]) -> Callable[[], dict[str, str]]:
    """Headers of requests that nobody repeats, of one of the `owners` after the other, who are given by their own."""
    following = itertools.cycle(owners)
    return lambda: {**next(following), "Idempotency-Key": str(uuid4())}


def post(port: int, body: Any, headers: dict[str, str], path: str = "/v1/jobs") -> tuple[int, bytes]:
    """The status and body of the answer, on a connection of its own."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
    try:
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        return CONNECTION_FAILURE, repr(error).encode()
    finally:
        connection.close()
