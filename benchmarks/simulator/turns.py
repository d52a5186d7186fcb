"""Lazy models by turns in one worker, in simulated time: the residency policy of this project, event by event."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import mean, quantiles

from inference.residency_policy.change_choice import Change
from inference.residency_policy.state import ResidencyState, Waiting

POLL_S = 0.5  # as in the worker: how often it decides, and in between looks for jobs in the database


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyModel:
    memory: int
    load_s: float
    call_s: float  # a batch
    batch: int = 8
    idle_unload_s: float = 300.0


@dataclass(frozen=True, slots=True, order=True)
class Arrival:
    at_s: float
    model: str
    priority: int = 2


@dataclass(slots=True)
class Outcome:
    waits_s: list[float] = field(default_factory=list)  # of each job, from its arrival to its end
    loads: list[tuple[float, str]] = field(default_factory=list)  # when each was begun
    stays: list[tuple[str, float, float, bool]] = field(default_factory=list)  # model, from, to, left with work behind
    first_waits_s: dict[str, float] = field(default_factory=dict)  # by model: the longest wait for its load
    most_memory: int = 0
    ended_s: float = 0.0

    @property
    def mean_wait_s(self) -> float:
        return mean(self.waits_s)

    @property
    def p99_wait_s(self) -> float:
        return quantiles(self.waits_s, n=100, method="inclusive")[98]


class Turns:
    """One replica, which loads or runs one batch at a time: the oldest job of the highest priority that it can run."""

    def __init__(self, models: Mapping[str, LazyModel], arrivals: Sequence[Arrival], room: int) -> None:
        self.specs = models
        self.residency = ResidencyState()
        self.residency.room = room
        for name, model in models.items():
            self.residency.register_model(name, idle_unload_s=model.idle_unload_s, memory=model.memory)
        self.queues: dict[str, deque[Arrival]] = defaultdict(deque)
        self.left = len(arrivals)
        self.numbers = count()
        self.events: list[tuple[float, int, Callable[[], object]]] = []
        self.now_s = 0.0
        self.seen: dict[str, Waiting] = {}
        self.busy = False
        self.is_made = False  # the change that was decided
        self.running = ""  # the model of the batch that runs
        self.began_s: dict[str, float] = {}
        self.outcome = Outcome()
        for arrival in arrivals:
            self.at(arrival.at_s, partial(self.queues[arrival.model].append, arrival))

    def run(self) -> Outcome:
        self.at(0.0, self.poll)
        self.at(POLL_S / 2, self.look)
        while self.events and self.left:
            self.now_s, _, happen = heapq.heappop(self.events)
            happen()
            self.work()
        self.outcome.ended_s = self.now_s
        return self.outcome

    def at(self, when_s: float, happen: Callable[[], object]) -> None:
        heapq.heappush(self.events, (when_s, next(self.numbers), happen))

    def look(self) -> None:
        self.at(self.now_s + POLL_S, self.look)
        self.seen = {
            name: Waiting(since_s=queue[0].at_s, priority=queue[0].priority)
            for name, queue in self.queues.items()
            if queue
        }

    def poll(self) -> None:
        self.at(self.now_s + POLL_S, self.poll)
        self.settle()
        held = {name for name in self.able if self.queues[name]}
        self.residency.update_demand(self.seen, working={*held, *self.seen, self.running}, kept=(), now_s=self.now_s)
        if change := self.residency.begin_next_change(self.now_s):
            self.note(change)

    def note(self, change: Change) -> None:
        for name in change.unload:
            self.outcome.stays.append((name, self.began_s.pop(name), self.now_s, bool(self.queues[name])))
        if change.load:
            name = change.load
            self.outcome.loads.append((self.now_s, name))
            waited_s = self.now_s - min((job.at_s for job in self.queues[name]), default=self.now_s)
            self.outcome.first_waits_s[name] = max(waited_s, self.outcome.first_waits_s.get(name, 0.0))

    def work(self) -> None:
        """What an idle replica does next: the change that was decided, before any batch."""
        if self.busy:
            return
        if self.residency.change and not self.is_made:
            name = self.residency.change.load
            self.start(self.load_s(name) if name else 0.0, self.made)
            return
        heads = [(queue[0].priority, queue[0].at_s, name) for name, queue in self.queues.items() if queue]
        if able := [head for head in heads if head[-1] in self.able]:
            self.run_batch(min(able)[-1])

    def load_s(self, name: str) -> float:
        return self.specs[name].load_s

    def run_batch(self, name: str) -> None:
        queue, spec = self.queues[name], self.specs[name]
        batch = [queue.popleft() for _ in range(min(spec.batch, len(queue)))]
        self.running = name
        self.start(spec.call_s, lambda: self.ran(batch))

    def start(self, seconds: float, then: Callable[[], object]) -> None:
        def end() -> None:
            self.busy = False
            then()

        self.busy = True
        self.at(self.now_s + seconds, end)

    def ran(self, batch: Sequence[Arrival]) -> None:
        self.running = ""
        self.left -= len(batch)
        self.outcome.waits_s += [self.now_s - job.at_s for job in batch]

    def made(self) -> None:
        """The replica runs its jobs from now on, the worker looks at it with its next poll."""
        self.is_made = True
        memory = sum(self.specs[name].memory for name in self.able)
        self.outcome.most_memory = max(self.outcome.most_memory, memory)

    def settle(self) -> None:
        if self.is_made:
            if self.residency.loading_model:
                self.began_s[self.residency.loading_model] = self.now_s
            self.residency.finish_change(self.now_s)
            self.is_made = False

    @property
    def able(self) -> frozenset[str]:
        """Models whose jobs can be run."""
        loaded = self.residency.loading_model if self.is_made else None
        return self.residency.models_in_memory | ({loaded} if loaded else set())
