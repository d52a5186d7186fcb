"""What one engine call costs: learnt while serving, from calls that were measured.

The cost is a sum of terms, each of which grows with items and with padded tokens and is convex in both:

    call + item + token + token x length + (tokens beyond each of BENDS)

Their weights are never negative. A GPU shows a large part for the call, and a bend where it is saturated; a CPU a small
part, and bends where its caches end. docs/explanation/batching.md has measured figures.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from inference.batching.cells import Cells
from inference.batching.overheads import Overheads

BENDS = (256, 1024, 4096, 16384)  # padded tokens
SHRINK = (1e-5, 1e-3, 1e-5, 1e-3, *[1e-3] * len(BENDS))  # what call and token explain, the others do not

GUESS_CALL_TOKENS = 64.0  # before anything is known, a call costs as much as so many tokens
GUESS_TOKEN_S = 1e-4
GUESS_CALLS = 0.1  # measured calls that weigh as much as the guess

CELL_CALLS = 8  # the last of one shape, that are kept
HALF_LIFE = 200.0  # calls of other shapes, for each that is kept, until what was learnt of a shape counts half
REFIT_EVERY = 32  # calls; more often at the beginning
RATE_MEMORY = 0.98  # of the measured speed, from one call to the next
SHORTEST_S = 1e-6  # a clock shows no less
MOST_TOLD = 40  # shapes, the last that were seen


class Call(NamedTuple):
    """A measured call of the engine."""

    size: int
    length: float
    seconds: float

    def terms(self) -> list[float]:
        tokens = float(self.size * self.length)
        return [1.0, float(self.size), tokens, tokens * self.length, *(max(0.0, tokens - bend) for bend in BENDS)]


class CostModel:
    """Learns what one call costs, in seconds, from calls that were measured.

    `overhead_s` is what a call costs besides the engine: a first guess, then measured. What each of its jobs costs
    there is the same in whatever calls they run, and no part of what is predicted.
    """

    def __init__(self, *, overhead_s: float = 0.001) -> None:
        self._overheads = Overheads(overhead_s)
        self.calls = 0
        self.weights = _guess(GUESS_TOKEN_S)
        self._cells = Cells[Call](size=CELL_CALLS, half_life=HALF_LIFE)
        self._fit_at = 1
        self._ran_jobs = self._ran_s = self._read_s = 0.0  # of about the last fifty calls

    def seconds(self, size: int, length: float) -> float:
        """Predicted duration of a call of `size` items of `length` tokens: padded to that, or on average."""
        return self.seconds_of([size], length)[0]

    def seconds_of(self, sizes: Sequence[int], length: float) -> list[float]:
        """The same for several calls of one length, the largest first."""
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

    def observe(self, size: int, length: float, seconds: float, *, jobs: float | None = None) -> None:
        """The engine took `seconds` for a call of that shape, for as many jobs as it has items if not said."""
        if size < 1 or length < 1 or not 0.0 <= seconds < math.inf:
            raise ValueError(f"a call has items, tokens and a finite time; not {size=} {length=} {seconds=}")
        self.calls += 1
        self._ran_jobs = self._ran_jobs * RATE_MEMORY + (size if jobs is None else jobs)
        self._ran_s = self._ran_s * RATE_MEMORY + seconds
        self._cells.keep(
            (_half_octave(size), _half_octave(length)),
            Call(size, length, max(seconds, SHORTEST_S)),
            lambda call: self.seconds(call.size, call.length),
        )
        if self.calls >= self._fit_at:
            self.weights = self._cells.fit(Call.terms, guess=_guess(1.0), trust=GUESS_CALLS, shrink=SHRINK)
            self._fit_at = self.calls + min(REFIT_EVERY, 1 + self.calls // 8)

    def observe_overhead(self, seconds: float, *, jobs: int = 1) -> None:
        """A call of so many jobs took `seconds` besides the engine."""
        self._overheads.observe(jobs, seconds)

    @property
    def overhead_s(self) -> float:
        return self._overheads.call_s

    def around_s(self, jobs: int) -> float:
        """What a call of so many jobs costs besides the engine, theirs and all."""
        return self._overheads.call_s + jobs * self._overheads.job_s

    def observe_reading(self, seconds: float) -> None:
        """The inputs of that call were read in `seconds`, beside another one."""
        self._read_s = self._read_s * RATE_MEMORY + seconds

    @property
    def pace(self) -> float:
        """How many times as long as the engine takes calls that follow each other take: that of reading, if it is
        longer."""
        return max(1.0, self._read_s / self._ran_s) if self._ran_s else 1.0

    def items_per_s(self) -> float:
        """Measured speed of the engine while it runs; 0.0 before the first call."""
        return self._ran_jobs / self._ran_s if self._ran_s else 0.0

    def told(self) -> dict[str, Any]:
        """For others to compare what was learnt with what was measured. May be called from another thread."""
        calls = self._cells.typical()[-MOST_TOLD:]
        seen = [[call.size, round(call.length, 1), round(call.seconds, 6)] for call in calls]
        weights = [float(f"{weight:.6g}") for weight in self.weights]
        overheads = {"overhead_s": round(self._overheads.call_s, 6), "job_s": round(self._overheads.job_s, 7)}
        return {"weights": weights, **overheads, "calls": self.calls, "seen": seen}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """One that predicts what the teller does."""
        model = cls(overhead_s=told["overhead_s"])
        model.weights, model.calls = list(told["weights"]), told["calls"]
        return model


def _half_octave(value: float) -> int:
    return round(2 * math.log2(value))


def _guess(token_s: float) -> list[float]:
    return [GUESS_CALL_TOKENS * token_s, 0.0, token_s, 0.0, *[0.0] * len(BENDS)]
