"""One policy in one scenario, event by event, in simulated time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import quantiles

from benchmarks.simulator.policies import Policy, shape
from benchmarks.simulator.workloads import LENGTHS, MACHINES, noise
from inference.batching.queue import Item


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    machine: str  # of MACHINES
    lengths: str  # of LENGTHS
    clients: int = 32  # in closed loop: each sends its next job when it has its answer
    items_per_s: float | None = None  # of Poisson arrivals, instead of clients
    replicas: int = 1
    jobs: int = 4000
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    items_per_s: float
    p50_ms: float
    p99_ms: float
    padding: float  # share of the computed tokens
    mean_batch: float


@dataclass(slots=True)
class Tally:
    latencies_s: list[float] = field(default_factory=list)
    tokens: int = 0
    padded_tokens: float = 0.0
    calls: int = 0

    def note(self, batch: list[Item], size: int, length: float, done_at_s: float) -> None:
        self.latencies_s += [done_at_s - item.arrived_at_s for item in batch]
        self.tokens += sum(item.length for item in batch)
        self.padded_tokens += size * length
        self.calls += 1

    def result(self, elapsed_s: float) -> Result:
        percentiles = quantiles(self.latencies_s, n=100, method="inclusive")
        return Result(
            items_per_s=len(self.latencies_s) / elapsed_s,
            p50_ms=percentiles[49] * 1000,
            p99_ms=percentiles[98] * 1000,
            padding=1.0 - self.tokens / self.padded_tokens,
            mean_batch=len(self.latencies_s) / self.calls,
        )


class Simulation:
    def __init__(self, scenario: Scenario, policy: Policy) -> None:
        self.scenario = scenario
        self.policy = policy
        self.machine = MACHINES[scenario.machine]
        chance = random.Random(scenario.seed)
        self.lengths = iter([LENGTHS[scenario.lengths](chance) for _ in range(scenario.jobs)])
        self.chance = random.Random(scenario.seed + 1)
        self.events: list[tuple[float, int, Callable[[], object]]] = []
        self.numbers = count()
        self.idle = scenario.replicas
        self.now_s = 0.0
        self.tally = Tally()

    def run(self) -> Result:
        if (items_per_s := self.scenario.items_per_s) is None:
            for _ in range(self.scenario.clients):
                self.at(0.0, self.arrive)
        else:
            self.at(0.0, partial(self.arrive_and_go_on, items_per_s))
        while self.events:
            self.now_s, _, happen = heapq.heappop(self.events)
            happen()
            if not self.events or self.events[0][0] > self.now_s:
                self.dispatch()
        return self.tally.result(self.now_s)

    def at(self, when_s: float, happen: Callable[[], object]) -> None:
        heapq.heappush(self.events, (when_s, next(self.numbers), happen))

    def arrive(self) -> bool:
        """The next job, if there is one."""
        length = next(self.lengths, None)
        if length is None:
            return False
        number = str(next(self.numbers))
        item = Item(id=number, group="", size=1, length=length, priority=2, arrived_at_s=self.now_s)
        self.policy.add(item)
        return True

    def arrive_and_go_on(self, items_per_s: float) -> None:
        if self.arrive():
            self.at(self.now_s + self.chance.expovariate(items_per_s), partial(self.arrive_and_go_on, items_per_s))

    def dispatch(self) -> None:
        while self.idle and (due_at_s := self.policy.find_due_at_s()) is not None:
            if due_at_s > self.now_s:
                self.at(due_at_s, lambda: None)
                return
            self.start(self.policy.take_batch(self.now_s))

    def start(self, batch: list[Item]) -> None:
        seconds = self.machine.seconds(*self.shape(batch)) * noise(self.chance)
        around_s = self.machine.call_s + len(batch) * self.machine.job_s
        around_s = around_s and around_s * noise(self.chance)
        self.idle -= 1
        self.at(self.now_s + seconds + around_s, lambda: self.finish(batch, seconds, around_s))

    def shape(self, batch: list[Item]) -> tuple[int, float]:
        return shape(batch, padded=self.machine.padded)

    def finish(self, batch: list[Item], seconds: float, around_s: float) -> None:
        self.idle += 1
        self.policy.observe(*self.shape(batch), seconds, padded=self.machine.padded)
        if around_s:
            self.policy.observe_around(len(batch), around_s)
        self.tally.note(batch, *self.shape(batch), self.now_s)
        if self.scenario.items_per_s is None:
            for _ in batch:
                self.arrive()
