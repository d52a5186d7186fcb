"""What a call of a child costs besides its engine, claim, record and notice: so much for the call, and so much for each
of its jobs. Only the former is saved where jobs share a call.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from inference.batching.least_squares import non_negative

KEPT = 16  # the last of nearly so many jobs
HALF_LIFE = 100.0  # calls of other numbers of jobs, for each that is kept, until what was learnt of one counts half
JOBS = 16.0  # whose parts are as much as that of their call, as far as the calls do not tell
TRUST = 0.1  # calls, that weigh as much as that
REFIT_EVERY = 8  # calls, after as many
SHRINK = (1e-5, 1e-5)
SHORTEST_S = 1e-6


class Overhead(NamedTuple):
    jobs: int
    seconds: float


@dataclass(slots=True)
class _Cell:
    """The last calls of nearly so many jobs. A pause is no cost: the call a third of the way up from the fastest speaks
    for all."""

    typical: Overhead
    calls: deque[Overhead] = field(default_factory=lambda: deque(maxlen=KEPT))
    last: int = 0  # the number of its last call

    def keep(self, call: Overhead, number: int) -> None:
        self.calls.append(call)
        self.last = number
        ranked = sorted(self.calls, key=lambda call: call.seconds / (JOBS + call.jobs))
        self.typical = ranked[(len(ranked) - 1) // 3]

    def weight(self, now: int) -> float:
        count = len(self.calls)
        fading: float = 0.5 ** ((now - self.last) / (HALF_LIFE * count))
        return count * fading


class Overheads:
    """Starts with a first guess of `call_s`."""

    def __init__(self, call_s: float) -> None:
        self.call_s, self.job_s = call_s, 0.0
        self._cells: dict[int, _Cell] = {}
        self._calls = 0

    def observe(self, jobs: int, seconds: float) -> None:
        self._calls += 1
        call = Overhead(jobs, max(seconds, SHORTEST_S))
        self._cells.setdefault(round(2 * math.log2(jobs)), _Cell(call)).keep(call, self._calls)
        if self._calls <= REFIT_EVERY or self._calls % REFIT_EVERY == 0:
            self.call_s, self.job_s = self._fit()

    def _fit(self) -> list[float]:
        """Least squares of the relative errors."""
        seen = [(cell.weight(self._calls), cell.typical) for cell in self._cells.values()]
        shares = [(weight, (JOBS + call.jobs) / call.seconds) for weight, call in seen]
        job_s = sum(weight * share for weight, share in shares) / sum(weight * share**2 for weight, share in shares)
        rows = [(weight, (1 / call.seconds, call.jobs / call.seconds)) for weight, call in seen]
        return non_negative(rows, SHRINK, (JOBS * job_s, job_s), TRUST)
