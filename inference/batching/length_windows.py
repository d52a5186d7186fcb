"""The search for the best window in length order: it decides which neighbours of a job share its call.

The waiting jobs are cut, in length order, into the calls that cost least in all. Each window around the job that must
go has a score: what it saves, divided by its own cost. A window saves the cost of all those calls less the cost of the
calls that would be left. So the score is 1 for a part of the cheapest cut, and less for any other window.

Age is added to the savings. Without it, a job that is unlike the others would wait until it is the oldest, and the
slowest answers would be slower than one at a time.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add

from inference.batching.costs import CostModel

AGE = 0.75  # seconds saved for which a second of an old job's own cost counts; less for younger jobs, by age


@dataclass(frozen=True, slots=True)
class Node:
    """One job, or several that are weighed as one."""

    size: int  # items
    length: int  # tokens of the longest item
    singly_s: float  # seconds that its jobs cost together, each in a call of its own
    aged_s: float  # the same, with each job's seconds times its age as a share of the age that counts in full


@dataclass(frozen=True, slots=True)
class _Calls:
    """The cost of the calls that end with one node, by the node that each begins with."""

    low: int  # the first of the nodes that calls begin with
    seconds: list[float]  # one a node, from `low` on


class WindowSearch:
    """A search over nodes in ascending order of length, for a window around the node `must`."""

    def __init__(self, nodes: Sequence[Node], must: int, costs: CostModel, *, max_size: int, max_tokens: float) -> None:
        self.nodes = nodes
        self.must = must
        self.costs = costs
        self.max_size = max_size
        self.max_tokens = max_tokens
        self.sizes = list(accumulate((node.size for node in nodes), initial=0))
        self.singly = list(accumulate((node.singly_s for node in nodes), initial=0.0))
        self.aged = list(accumulate((AGE * node.aged_s for node in nodes), initial=0.0))

    def find_best_window(self) -> range:
        """Return the nodes of the window with the highest score.

        A window holds `must`, fits into a call, and is not predicted to take longer than its jobs one at a time. `must`
        alone always is such a window.
        """
        before, after = self._compute_cheapest_before(), self._compute_cheapest_after()
        ends = {high: self._predict_calls(high, 0, self.must) for high in range(self.must, len(self.nodes))}
        ends = {high: calls for high, calls in ends.items() if calls.seconds}
        total = min(min(map(add, before[calls.low :], calls.seconds)) + after[high] for high, calls in ends.items())
        unsaved = list(map(add, before, self.aged))
        most, window = 0.0, range(self.must, self.must + 1)
        for high, calls in ends.items():
            scores = self._score_calls(high, calls, total - after[high] + self.aged[high + 1], unsaved)
            if max(scores) > most:
                most = max(scores)
                window = range(calls.low + scores.index(most), high + 1)
        return window

    def _score_calls(self, high: int, calls: _Calls, gain: float, unsaved: Sequence[float]) -> list[float]:
        """Return the score of each call: what it saves plus what its age counts for, divided by its cost.

        The score of a call that is slower than its jobs one at a time is 0.
        """
        singly, last = self.singly[high + 1], self.must + 1
        starts = zip(unsaved[calls.low : last], self.singly[calls.low : last], calls.seconds, strict=True)
        return [(gain - less) / seconds if seconds <= singly - before else 0.0 for less, before, seconds in starts]

    def _predict_calls(self, high: int, first: int, last: int) -> _Calls:
        """Return the calls that end with node `high` and begin with one of the nodes `first` to `last`.

        They are within the limits, but for a call of the node `high` alone, which may exceed them.
        """
        length, end = self.nodes[high].length, self.sizes[high + 1]
        lowest = bisect_left(self.sizes, end - min(self.max_size, self.max_tokens // length))
        low = max(first, min(lowest, high))
        return _Calls(
            low, self.costs.predict_each_call_s([end - start for start in self.sizes[low : last + 1]], length)
        )

    def _compute_cheapest_before(self) -> list[float]:
        """Return the seconds of the cheapest cut of the first 0, 1, 2 ... nodes, up to `must`."""
        cheapest = [0.0]
        for high in range(self.must):
            calls = self._predict_calls(high, 0, high)
            cheapest.append(min(map(add, cheapest[calls.low :], calls.seconds)))
        return cheapest

    def _compute_cheapest_after(self) -> list[float]:
        """Return by node, from `must` on, the seconds of the cheapest cut of all nodes that follow it."""
        last = len(self.nodes) - 1
        cheapest = [float("inf")] * last + [0.0]
        for high in range(last, self.must, -1):
            calls = self._predict_calls(high, self.must + 1, high)
            for node, seconds in enumerate(calls.seconds, calls.low - 1):
                cheapest[node] = min(cheapest[node], seconds + cheapest[high])
        return cheapest
