"""What a call of a child costs besides its engine, claim, record and notice: so much for the call, and so much for each
of its jobs. Only the former is saved where jobs share a call.
"""

import math
from typing import NamedTuple

from inference.batching.cells import Cells

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


class Overheads:
    """Starts with a first guess of `call_s`."""

    def __init__(self, call_s: float) -> None:
        self.call_s, self.job_s = call_s, 0.0
        self._cells = Cells[Overhead](size=KEPT, half_life=HALF_LIFE)

    def observe(self, jobs: int, seconds: float) -> None:
        call = Overhead(jobs, max(seconds, SHORTEST_S))
        self._cells.keep(round(2 * math.log2(jobs)), call, lambda call: JOBS + call.jobs)
        if self._cells.number <= REFIT_EVERY or self._cells.number % REFIT_EVERY == 0:
            self.call_s, self.job_s = self._cells.fit(
                lambda call: (1.0, call.jobs), guess=(JOBS, 1.0), trust=TRUST, shrink=SHRINK
            )
