"""The search for the best window in length order: which neighbours of a job share its call.

What waits is cut, in length order, into the calls that cost least in all. Around the job that must go, every window is
weighed by what it saves, the cost of all those calls less the cost of those that would be left, over its own cost:
that is 1 for a part of the cheapest cut, and less elsewhere. Age is added to it: without, a job that is unlike the
others waits until it is the oldest, and the slowest answers are slower than one at a time would have been.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add

from inference.batching.costs import CostModel

AGE = 0.75  # of a second saved: what a second counts that the oldest job would cost alone; in between, by age


@dataclass(frozen=True, slots=True)
class Node:
    """One job, or several that are weighed as one."""

    size: int  # items
    length: int  # tokens of the longest
    singly_s: float  # what its jobs cost, each in a call of its own
    aged_s: float  # the same, times the age of each as a share of the oldest one's


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls that end with the same node: what each costs, by the node it begins with, from `low` on."""

    low: int
    seconds: list[float]


class WindowSearch:
    """Over nodes in ascending order of length, around the node `must`."""

    def __init__(self, nodes: Sequence[Node], must: int, costs: CostModel, *, max_size: int, max_tokens: float) -> None:
        self.nodes = nodes
        self.must = must
        self.costs = costs
        self.max_size = max_size
        self.max_tokens = max_tokens
        self.sizes = list(accumulate((node.size for node in nodes), initial=0))
        self.singly = _sums(node.singly_s for node in nodes)
        self.aged = _sums(AGE * node.aged_s for node in nodes)

    def best(self) -> range:
        """The nodes of the window of the highest score, of those that hold `must`, fit in a call, and are not predicted
        to take longer than their jobs one at a time. `must` alone is one of them."""
        before, after = self._cheapest_before(), self._cheapest_after()
        ends = {high: self._calls(high, 0, self.must) for high in range(self.must, len(self.nodes))}
        ends = {high: calls for high, calls in ends.items() if calls.seconds}
        total = min(min(map(add, before[calls.low :], calls.seconds)) + after[high] for high, calls in ends.items())
        unsaved = list(map(add, before, self.aged))
        most, window = 0.0, range(self.must, self.must + 1)
        for high, calls in ends.items():
            scores = self._scores(high, calls, total - after[high] + self.aged[high + 1], unsaved)
            if max(scores) > most:
                most = max(scores)
                window = range(calls.low + scores.index(most), high + 1)
        return window

    def _scores(self, high: int, calls: _Calls, gain: float, unsaved: Sequence[float]) -> list[float]:
        """What each call saves, and the age it serves, over its cost; 0 for what is slower than one at a time."""
        singly, last = self.singly[high + 1], self.must + 1
        starts = zip(unsaved[calls.low : last], self.singly[calls.low : last], calls.seconds, strict=True)
        return [(gain - less) / seconds if seconds <= singly - before else 0.0 for less, before, seconds in starts]

    def _calls(self, high: int, first: int, last: int) -> _Calls:
        """Those that end with node `high`, begin with node `first` to `last`, and are within the limits or a node."""
        length, end = self.nodes[high].length, self.sizes[high + 1]
        lowest = bisect_left(self.sizes, end - min(self.max_size, self.max_tokens // length))
        low = max(first, min(lowest, high))
        return _Calls(low, self.costs.seconds_of([end - start for start in self.sizes[low : last + 1]], length))

    def _cheapest_before(self) -> list[float]:
        """Seconds of the cheapest cut of the first 0, 1, 2 ... nodes, up to `must`."""
        cheapest = [0.0]
        for high in range(self.must):
            calls = self._calls(high, 0, high)
            cheapest.append(min(map(add, cheapest[calls.low :], calls.seconds)))
        return cheapest

    def _cheapest_after(self) -> list[float]:
        """By node, from `must` on, seconds of the cheapest cut of all that follows it."""
        last = len(self.nodes) - 1
        cheapest = [float("inf")] * last + [0.0]
        for high in range(last, self.must, -1):
            calls = self._calls(high, self.must + 1, high)
            for node, seconds in enumerate(calls.seconds, calls.low - 1):
                cheapest[node] = min(cheapest[node], seconds + cheapest[high])
        return cheapest


def _sums(values: Iterable[float]) -> list[float]:
    return list(accumulate(values, initial=0.0))
