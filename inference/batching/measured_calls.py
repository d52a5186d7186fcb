"""Measured calls by their shape, and the weights of the terms of their cost."""

import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from inference.batching.least_squares import solve_non_negative


class MeasuredCall(Protocol):
    @property
    def seconds(self) -> float: ...


T = TypeVar("T", bound=MeasuredCall)


@dataclass(slots=True)
class CallsOfShape(Generic[T]):
    """The last calls of nearly one shape."""

    calls: deque[T]
    typical: T  # the call that stands for all of them
    last: int = 0  # the number of its last call


class MeasuredCalls(Generic[T]):
    """The last `size` calls of each shape.

    The weight of a shape halves with every `half_life` calls of other shapes, times the calls of it that are kept. Else
    a shape that was wrongly found expensive might never be tried again.
    """

    def __init__(self, *, size: int, half_life: float) -> None:
        self.size, self.half_life = size, half_life
        self.number = 0  # number of the last call
        self._cells: dict[Hashable, CallsOfShape[T]] = {}

    def add_call(self, shape: Hashable, call: T, expected_s: Callable[[T], float]) -> None:
        """Keep a call, and choose anew the call that stands for its shape.

        Other work of the machine only ever makes a call slower, and the first call of a shape is the slowest. So the
        call a third of the way up from the fastest is chosen.
        """
        self.number += 1
        cell = self._cells.setdefault(shape, CallsOfShape(deque(maxlen=self.size), call))
        cell.calls.append(call)
        cell.last = self.number
        ranked = sorted(cell.calls, key=lambda call: call.seconds / expected_s(call))
        cell.typical = ranked[(len(ranked) - 1) // 3]

    def list_typical_calls(self) -> list[T]:
        """Return a call of each shape, the last that was measured at the end."""
        return [cell.typical for cell in sorted(self._cells.values(), key=lambda cell: cell.last)]

    def fit_weights(
        self, terms: Callable[[T], Sequence[float]], *, guess: Sequence[float], trust: float, shrink: Sequence[float]
    ) -> list[float]:
        """Return the weights of the terms, none negative, whose weighted sum comes nearest to the measured seconds.

        They are those of the least squares of the relative errors. As far as the calls do not determine the weights,
        they are in the proportion of `guess`, which weighs as much as `trust` calls. `shrink` is that of
        `solve_non_negative`.
        """
        rows = [
            (self._weigh_cell(cell), [term / cell.typical.seconds for term in terms(cell.typical)])
            for cell in self._cells.values()
        ]
        shares = [(weight, math.fsum(map(math.prod, zip(guess, row, strict=True)))) for weight, row in rows]
        scale = sum(weight * share for weight, share in shares) / sum(weight * share**2 for weight, share in shares)
        return solve_non_negative(rows, shrink, [scale * each for each in guess], trust)

    def _weigh_cell(self, cell: CallsOfShape[Any]) -> float:
        count = len(cell.calls)
        fading: float = 0.5 ** ((self.number - cell.last) / (self.half_life * count))
        return count * fading
