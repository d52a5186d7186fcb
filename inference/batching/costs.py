"""The cost of an engine call, learnt while serving from calls that were measured.

The cost is a sum of terms, each of which grows with items and with padded tokens and is convex in both:

    call + item + token + token x length + (tokens beyond each of BENDS)

Their weights are never negative. A GPU shows a large part for the call, and a bend where it is saturated; a CPU a small
part, and bends where its caches end. docs/explanation/batching.md has measured figures.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

from inference.batching.measured_calls import MeasuredCalls
from inference.batching.overheads import Overheads
from inference.fields.worker_documents import CostSnapshot

BENDS = (256, 1024, 4096, 16384)  # padded tokens
SHRINK = (1e-5, 1e-3, 1e-5, 1e-3, *[1e-3] * len(BENDS))  # by term; least for call and token, which are to explain most

GUESS_CALL_TOKENS = 64.0  # tokens that cost as much as a call, before anything is measured
GUESS_TOKEN_S = 1e-4
GUESS_CALLS = 0.1  # measured calls that weigh as much as the guess

CELL_CALLS = 8  # last calls of one shape that are kept
HALF_LIFE = 200.0  # calls of other shapes, for each that is kept, until what was learnt of a shape counts half
REFIT_EVERY = 32  # calls between two fits; fewer at the beginning
RATE_MEMORY = 0.98  # share of the measured speed that is kept from one call to the next
SHORTEST_S = 1e-6  # seconds; the clock measures nothing shorter
MOST_SHAPES = 40  # shapes that `make_snapshot` reports: those that were seen last


class CallMeasurement(NamedTuple):
    """A measured call of the engine."""

    size: int
    length: float
    seconds: float

    def compute_cost_terms(self) -> list[float]:
        tokens = float(self.size * self.length)
        return [1.0, float(self.size), tokens, tokens * self.length, *(max(0.0, tokens - bend) for bend in BENDS)]


class CostModel:
    """The predicted cost of a call in seconds, learnt from calls that were measured.

    `overhead_s` is what a call costs besides the engine. It is a guess at first, and measured later. What each job of
    a call costs besides the engine is no part of the prediction: it is the same in whichever call the job runs.
    """

    def __init__(self, *, overhead_s: float = 0.001) -> None:
        self._overheads = Overheads(overhead_s)
        self.calls = 0
        self.weights = _guess_weights(GUESS_TOKEN_S)
        self._cells = MeasuredCalls[CallMeasurement](size=CELL_CALLS, half_life=HALF_LIFE)
        self._fit_at = 1
        self._ran_jobs = self._ran_s = self._read_s = 0.0  # sums over about the last fifty calls

    def predict_call_s(self, size: int, length: float) -> float:
        """Predict how many seconds a call of `size` items takes.

        `length` is the tokens of each item: those it is padded to, or the average where nothing is padded.
        """
        return self.predict_each_call_s([size], length)[0]

    def predict_engine_s(self, size: int, length: float) -> float:
        """Predict how many of the seconds of a call the engine takes."""
        return self.predict_call_s(size, length) - self.overhead_s

    def predict_each_call_s(self, sizes: Sequence[int], length: float) -> list[float]:
        """Predict the seconds of several calls with items of one length. `sizes` has the largest call first."""
        call, item, token, token_length, *beyond = self.weights
        call += self.overhead_s
        slope = item + length * (token + token_length * length)
        seconds = [call + slope * size for size in sizes]
        for bend, weight in zip(BENDS, beyond, strict=True):
            for place, size in enumerate(sizes):
                if size * length <= bend:
                    break
                seconds[place] += weight * (size * length - bend)
        return seconds

    def learn_call(self, size: int, length: float, seconds: float, *, jobs: float | None = None) -> None:
        """Learn that the engine took `seconds` for a call of `size` items of `length` tokens.

        The call was for `jobs` jobs, or without that for as many as it has items. Raises `ValueError` if the call has
        no items, no tokens or no finite time.
        """
        if size < 1 or length < 1 or not 0.0 <= seconds < math.inf:
            raise ValueError(f"a call has items, tokens and a finite time; not {size=} {length=} {seconds=}")
        self.calls += 1
        self._ran_jobs = self._ran_jobs * RATE_MEMORY + (size if jobs is None else jobs)
        self._ran_s = self._ran_s * RATE_MEMORY + seconds
        self._cells.add_call(
            (_compute_half_octave(size), _compute_half_octave(length)),
            CallMeasurement(size, length, max(seconds, SHORTEST_S)),
            lambda call: self.predict_call_s(call.size, call.length),
        )
        if self.calls >= self._fit_at:
            self.weights = self._cells.fit_weights(
                CallMeasurement.compute_cost_terms, guess=_guess_weights(1.0), trust=GUESS_CALLS, shrink=SHRINK
            )
            self._fit_at = self.calls + min(REFIT_EVERY, 1 + self.calls // 8)

    def learn_overhead(self, seconds: float, *, jobs: int = 1) -> None:
        """Learn that a call of `jobs` jobs took `seconds` besides the engine."""
        self._overheads.learn_call(jobs, seconds)

    @property
    def overhead_s(self) -> float:
        return self._overheads.call_s

    def learn_read_time(self, seconds: float) -> None:
        """Learn that reading the inputs of the last call took `seconds`, while another call computed."""
        self._read_s = self._read_s * RATE_MEMORY + seconds

    @property
    def read_to_run_ratio(self) -> float:
        """The time of a call that follows others, as a multiple of the engine's time.

        It is more than 1 where reading the inputs takes longer than the engine: then the time of reading counts.
        """
        return max(1.0, self._read_s / self._ran_s) if self._ran_s else 1.0

    def items_per_s(self) -> float:
        """Return the measured jobs a second of the engine while it runs; 0.0 before the first call."""
        return self._ran_jobs / self._ran_s if self._ran_s else 0.0

    def make_snapshot(self) -> CostSnapshot:
        """Return what was learnt and what was measured, so that the two can be compared elsewhere.

        It may be called from another thread.
        """
        calls = self._cells.list_typical_calls()[-MOST_SHAPES:]
        return CostSnapshot(
            weights=[float(f"{weight:.6g}") for weight in self.weights],
            overhead_s=round(self._overheads.call_s, 6),
            job_s=round(self._overheads.job_s, 7),
            calls=self.calls,
            seen=[(call.size, round(call.length, 1), round(call.seconds, 6)) for call in calls],
        )

    @classmethod
    def from_snapshot(cls, snapshot: CostSnapshot) -> Self:
        """Make a cost model that predicts the same as the one whose `snapshot()` is given."""
        model = cls(overhead_s=snapshot.overhead_s)
        model.weights, model.calls = list(snapshot.weights), snapshot.calls
        return model


def _compute_half_octave(value: float) -> int:
    return round(2 * math.log2(value))


def _guess_weights(token_s: float) -> list[float]:
    return [GUESS_CALL_TOKENS * token_s, 0.0, token_s, 0.0, *[0.0] * len(BENDS)]
