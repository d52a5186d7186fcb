"""The policy of this project, and those of other servers, behind one face."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from inference.batching.costs import CostModel
from inference.batching.queue import BatchQueue, Item, Limits

MAX_SIZE = 32
MAX_TOKENS = 8192
WINDOW_S = 0.005
SORTED_BATCHES = 8


class Policy(Protocol):
    def add(self, item: Item) -> object: ...

    def find_due_at_s(self) -> float | None:
        """When the next batch may go; None when empty."""

    def take_batch(self, now_s: float) -> list[Item]: ...

    def observe(self, size: int, length: float, seconds: float, *, padded: bool) -> None: ...

    def observe_around(self, jobs: int, seconds: float) -> None:
        """What a call took besides."""


def shape(batch: Sequence[Item], *, padded: bool = True) -> tuple[int, float]:
    """Items, and tokens of the longest, or on average."""
    lengths = [item.length for item in batch]
    return len(batch), max(lengths) if padded else sum(lengths) / len(lengths)


class Ours(BatchQueue):
    def __init__(self) -> None:
        super().__init__(Limits(max_batch_size=MAX_SIZE, max_batch_tokens=MAX_TOKENS), CostModel())

    def observe(self, size: int, length: float, seconds: float, *, padded: bool) -> None:
        self.padded = padded
        self.costs.learn_call(size, length, seconds)

    def observe_around(self, jobs: int, seconds: float) -> None:
        self.costs.learn_overhead(seconds, jobs=jobs)


@dataclass
class FirstCome:
    """In the order of arrival, up to a limit, or as many as there are when the window of the oldest is over."""

    max_size: int = MAX_SIZE
    max_tokens: float = math.inf
    window_s: float = 0.0
    waiting: deque[Item] = field(default_factory=deque)

    def add(self, item: Item) -> None:
        self.waiting.append(item)

    def find_due_at_s(self) -> float | None:
        if not self.waiting:
            return None
        return self.waiting[0].arrived_at_s + (self.window_s if len(self.waiting) < self.max_size else 0.0)

    def take_batch(self, now_s: float) -> list[Item]:
        batch = [self.waiting.popleft()]
        while self.waiting and self._fit([*batch, self.waiting[0]]):
            batch.append(self.waiting.popleft())
        return batch

    def observe(self, size: int, length: float, seconds: float, *, padded: bool) -> None:
        """It learns nothing."""

    def observe_around(self, jobs: int, seconds: float) -> None:
        """Nor of that."""

    def _fit(self, batch: Sequence[Item]) -> bool:
        size, length = shape(batch)
        return size <= self.max_size and size * length <= self.max_tokens


@dataclass
class SortedBatches(FirstCome):
    """Takes several batches' worth, sorts it by length, and runs all of it before it looks again."""

    sorted: deque[list[Item]] = field(default_factory=deque)

    def find_due_at_s(self) -> float | None:
        return -math.inf if self.sorted else super().find_due_at_s()

    def take_batch(self, now_s: float) -> list[Item]:
        if not self.sorted:
            most = min(len(self.waiting), self.max_size * SORTED_BATCHES)
            taken = sorted((self.waiting.popleft() for _ in range(most)), key=lambda item: item.length)
            self.sorted += [taken[at : at + self.max_size] for at in range(0, most, self.max_size)]
        return self.sorted.popleft()


POLICIES: dict[str, Callable[[], Policy]] = {
    "ours": Ours,
    "one at a time": lambda: FirstCome(max_size=1),
    "first come": lambda: FirstCome(window_s=WINDOW_S),
    "token budget": lambda: FirstCome(max_tokens=MAX_TOKENS),
    "sort 8 batches": SortedBatches,
}
