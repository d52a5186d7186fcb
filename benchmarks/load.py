"""The load generator: keep-alive HTTP/1.1 over uvloop and httptools, about 0.05 ms of CPU a request, answers checked.

Closed loop: N clients, each sends its next request when it has its answer. Poisson: requests at random times of a
given rate, whatever the system does; latency then counts from the moment a request was due.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import httptools
import uvloop

from benchmarks.processes import cpu_seconds
from benchmarks.samples import Sample, quantile, slope

WARM_UP_S = 1.5
ANSWERS_PER_CLIENT = 3  # in a window, which is longer where this needs it
LONGEST_WINDOW = 4.0  # times the length asked for
DRAIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    port: int
    requests: Sequence[bytes]  # one a text of the pool
    is_right: Callable[[int, bytes], bool]  # of a text's index and the body


class Connection(asyncio.Protocol):
    """One connection with at most one request under way."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.parser = httptools.HttpResponseParser(self)
        self.body = b""
        self.busy = False
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send(self, index: int, due_s: float) -> None:
        self.index, self.due_s, self.busy, self.body = index, due_s, True, b""
        self.transport.write(self.run.target.requests[index])

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.busy = False
        if not self.parser.should_keep_alive():
            self.closed = True
            self.transport.close()
        right = self.parser.get_status_code() == 200 and self.run.target.is_right(self.index, self.body)
        self.run.answered(self, right)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self.busy:
            self.busy = False
            self.run.answered(self, right=False)


@dataclass
class Run:
    """What both kinds of load share: connections, and the record of what came back."""

    target: Target
    first: int = 0  # text to begin with
    finished: list[tuple[float, float]] = field(default_factory=list)  # (when, latency) of right answers
    wrong: int = 0
    under_way: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        pool = len(self.target.requests)
        self.indexes = (index % pool for index in itertools.count(self.first))

    def connection(self) -> Connection:
        return Connection(self)

    async def connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(self.connection, "127.0.0.1", self.target.port))[1]

    def send(self, connection: Connection | None, index: int, due_s: float) -> None:
        """Over `connection`, or a new one."""
        self.under_way += 1
        if connection and not connection.closed:
            connection.send(index, due_s)
        else:
            task = asyncio.ensure_future(self.send_over_new(index, due_s))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def send_over_new(self, index: int, due_s: float) -> None:
        try:
            connection = await self.connect()
        except OSError:
            self.under_way -= 1
            self.wrong += 1
        else:
            connection.send(index, due_s)

    def answered(self, connection: Connection, right: bool) -> None:
        now_s = time.monotonic()
        self.under_way -= 1
        if right:
            self.finished.append((now_s, now_s - connection.due_s))
        else:
            self.wrong += 1
        self.go_on(connection)

    def go_on(self, connection: Connection) -> None:
        raise NotImplementedError

    async def window(self, seconds: float, answers: int) -> Sample:
        """Let the load go on for `seconds`, or until there are `answers`, and measure."""
        begun_s, first = time.monotonic(), len(self.finished)
        cpu_s, own_s = cpu_seconds(), time.process_time()
        await asyncio.sleep(seconds)
        while len(self.finished) - first < answers and time.monotonic() < begun_s + LONGEST_WINDOW * seconds:
            await asyncio.sleep(0.05)
        took_s = time.monotonic() - begun_s
        spent = cpu_seconds() - cpu_s, time.process_time() - own_s
        return self.sample(self.finished[first:], answers, took_s, spent)

    def sample(
        self, window: Sequence[tuple[float, float]], wanted: int, took_s: float, spent: tuple[float, float]
    ) -> Sample:
        cpu_s, own_s = spent
        latencies = sorted(latency for _, latency in window) or [float("nan")]
        rate = slope([when for when, _ in window]) if len(window) >= wanted > 0 else len(window) / took_s
        return Sample(
            answers=len(window),
            rate=rate,
            p50_ms=quantile(latencies, 0.5) * 1000,
            p99_ms=quantile(latencies, 0.99) * 1000,
            cpu_ms=cpu_s / took_s / rate * 1000 if rate else float("nan"),
            wrong=self.wrong,
            unanswered=self.under_way,
            generator_share=own_s / took_s,
        )

    async def drain(self) -> int:
        """How many requests are never answered."""
        deadline = time.monotonic() + DRAIN_S
        while self.under_way and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return self.under_way


class ClosedLoop(Run):
    stopping = False

    def go_on(self, connection: Connection) -> None:
        if not self.stopping:
            self.send(connection, next(self.indexes), time.monotonic())

    async def measure(self, clients: int, seconds: float) -> Sample:
        for connection in [await self.connect() for _ in range(clients)]:
            self.go_on(connection)
        await asyncio.sleep(min(WARM_UP_S, seconds / 2))
        sample = await self.window(seconds, ANSWERS_PER_CLIENT * clients)
        self.stopping = True
        return replace(sample, unanswered=await self.drain(), wrong=self.wrong)


class Poisson(Run):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.idle: deque[Connection] = deque()

    def go_on(self, connection: Connection) -> None:
        if not connection.closed:
            self.idle.append(connection)

    async def arrive(self, rate: float) -> None:
        rng, due_s = random.Random(self.first), time.monotonic()
        while True:
            due_s += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            self.send(self.idle.pop() if self.idle else None, next(self.indexes), due_s)

    async def measure(self, rate: float, seconds: float) -> Sample:
        arrivals = asyncio.ensure_future(self.arrive(rate))
        await asyncio.sleep(min(WARM_UP_S, seconds / 2))
        sample = await self.window(seconds, 0)
        arrivals.cancel()
        return replace(sample, unanswered=await self.drain(), wrong=self.wrong)


def closed_loop(target: Target, *, clients: int, seconds: float, first: int) -> Sample:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(ClosedLoop(target, first).measure(clients, seconds))


def poisson(target: Target, *, rate: float, seconds: float, first: int) -> Sample:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Poisson(target, first).measure(rate, seconds))
