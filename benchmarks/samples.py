"""What one window of load gave, and the arithmetic behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One window. Rates are a second."""

    answers: int
    rate: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float  # of all the system's processes, an answer
    wrong: int  # answers with a wrong content or status, and connections lost, outside the window too
    unanswered: int
    generator_share: float  # of one core, used by the load generator itself


def slope(times: Sequence[float]) -> float:
    """Answers a second, by the straight line through number and time: exact for batches of any size, wherever the
    window begins and ends."""
    mean_s, mean_n = sum(times) / len(times), (len(times) - 1) / 2
    together = sum((when - mean_s) * (n - mean_n) for n, when in enumerate(times))
    return together / sum((when - mean_s) ** 2 for when in times)


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
