"""Closed loop over streamed answers, or whole ones: each is checked, its first text and its tokens are counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import uvloop

from benchmarks.generation.answers import text_of
from benchmarks.generation.dataset import Example
from benchmarks.load import ClosedLoop, Connection, Target
from benchmarks.processes import cpu_seconds
from benchmarks.samples import slope

WARM_UP_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What came back in it; times are of what was sent in it. Without streams the first text comes with the last."""

    tokens_per_s: float
    answers: int
    firsts_ms: list[float]  # until there is text
    shorts_ms: list[float]  # whole answers of the fewest tokens
    cpu_ms: float  # of all the system's processes, a token
    wrong: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    example: Example
    sent_at: float
    at: float
    first_at: float


class Stream(Connection):
    """One connection, which notes when an answer's text begins."""

    first_at = 0.0

    def send(self, index: int, due_s: float) -> None:
        self.first_at = 0.0
        super().send(index, due_s)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if not self.first_at and text_of(self.body):
            self.first_at = time.monotonic()


@dataclass
class Streams(ClosedLoop):
    pool: Sequence[Example] = ()
    answers: list[Answer] = field(default_factory=list)

    def connection(self) -> Connection:
        return Stream(self)

    def answered(self, connection: Connection, right: bool) -> None:
        if right and isinstance(connection, Stream):
            example = self.pool[connection.index]
            self.answers.append(
                Answer(example=example, sent_at=connection.due_s, first_at=connection.first_at, at=time.monotonic())
            )
        super().answered(connection, right)

    async def listen(self, clients: int, seconds: float) -> Window:
        for connection in [await self.connect() for _ in range(clients)]:
            self.go_on(connection)
        await asyncio.sleep(WARM_UP_S)
        begun_at, cpu_s = time.monotonic(), cpu_seconds()
        await asyncio.sleep(seconds)
        ended_at, cpu_s = time.monotonic(), cpu_seconds() - cpu_s
        self.stopping = True
        await self.drain()
        found = [answer for answer in self.answers if begun_at <= answer.at < ended_at]
        sent = [answer for answer in self.answers if begun_at <= answer.sent_at < ended_at]  # no burst
        ends = [answer.at for answer in found for _ in range(answer.example.tokens)]
        tokens_per_s = slope(ends) if len({answer.at for answer in found}) > 1 else 0.0
        return Window(
            tokens_per_s=tokens_per_s,
            answers=len(found),
            wrong=self.wrong,
            firsts_ms=[1000 * (answer.first_at - answer.sent_at) for answer in sent],
            shorts_ms=[1000 * (answer.at - answer.sent_at) for answer in sent if answer.example.is_short],
            cpu_ms=1000 * cpu_s / seconds / tokens_per_s if tokens_per_s else float("nan"),
        )


def closed_loop(target: Target, pool: Sequence[Example], *, clients: int, seconds: float, first: int) -> Window:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Streams(target, first, pool=pool).listen(clients, seconds))
