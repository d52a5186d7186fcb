"""The cost of a batch call besides the engine, such as claim, record and notice.

A part of it is for the call, and a part for each of its jobs. Only the part for the call is saved where jobs share one.
"""

import math
from typing import NamedTuple

from inference.batching.measured_calls import MeasuredCalls

KEPT = 16  # last calls of nearly one number of jobs that are kept
HALF_LIFE = 100.0  # calls of other numbers of jobs, for each that is kept, until what was learnt of one counts half
JOBS = 16.0  # the guess: the part of a call is as much as the parts of so many jobs
TRUST = 0.1  # measured calls that weigh as much as the guess
REFIT_EVERY = 8  # calls between two fits, after as many that are fitted one by one
SHRINK = (1e-5, 1e-5)
SHORTEST_S = 1e-6


class Overhead(NamedTuple):
    jobs: int
    seconds: float


class Overheads:
    """The learnt seconds of a call and of each of its jobs besides the engine; `call_s` begins with a guess."""

    def __init__(self, call_s: float) -> None:
        self.call_s, self.job_s = call_s, 0.0
        self._cells = MeasuredCalls[Overhead](size=KEPT, half_life=HALF_LIFE)

    def learn_call(self, jobs: int, seconds: float) -> None:
        call = Overhead(jobs, max(seconds, SHORTEST_S))
        self._cells.add_call(round(2 * math.log2(jobs)), call, lambda call: JOBS + call.jobs)
        if self._cells.number <= REFIT_EVERY or self._cells.number % REFIT_EVERY == 0:
            self.call_s, self.job_s = self._cells.fit_weights(
                lambda call: (1.0, call.jobs), guess=(JOBS, 1.0), trust=TRUST, shrink=SHRINK
            )
