"""A tally of what happened in some time: a tree of numbers that adds up over writers, over models and over time.

```
ended      jobs by outcome: "succeeded", "cancelled", "expired", or "failed CODE"; a job that runs in parts counts once
wait, run  seconds of each job that ran, or of each part that ran; first: seconds to the first token
batch      items of a batch
real, padded  tokens of the items of batches, and with their padding
engine_s   seconds that engines took for batches
cost       seconds of batches that were predicted: expected_s, real_s, and the sum of the differences, off_s
tokens     tokens that were generated
refused    requests that were refused, by error code
requests   answers of web processes, by "METHOD address status"
now        the state at `samples` moments, summed; most: the largest values of these
```

A distribution is {"sum": sum of the values, "in": {bucket: number of values}}. A bucket is a quarter of a doubling
wide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from inference.models import Status

Tally = dict[str, Any]

MOST = "most"  # below this key the larger number is kept; elsewhere the sum
STEPS = 4  # buckets for each doubling
UNIT_S = 0.001  # seconds: the unit of durations
_SMALLEST, _LARGEST = 0, 30 * STEPS


def make_end_name(status: str, code: str) -> str:
    """Return the name by which figures count an end."""
    return f"{status} {code}" if status == Status.FAILED else str(status)


def merge_tally(tally: Tally, more: Mapping[str, Any], *, largest: bool = False) -> Tally:
    """Merge `more` into `tally`, which is returned: numbers are summed, or with `largest` the larger one is kept."""
    for key, value in more.items():
        if isinstance(value, Mapping):
            merge_tally(tally.setdefault(key, {}), value, largest=largest or key == MOST)
        else:
            before = tally.get(key, 0)
            tally[key] = max(before, value) if largest else before + value
    return tally


def sum_tallies(tallies: Iterable[Mapping[str, Any]]) -> Tally:
    total: Tally = {}
    for tally in tallies:
        merge_tally(total, tally)
    return total


def add_value(tally: Tally, name: str, value: float, *, unit: float = 1.0, count: int = 1) -> None:
    """Add a value, or `count` times the same value, to a distribution.

    Its bucket ends at `compute_histogram_bucket_end(bucket) * unit`.
    """
    found = tally.setdefault(name, {"sum": 0.0, "in": {}})
    key = str(find_histogram_bucket(value / unit))
    found["sum"] += value * count
    found["in"][key] = found["in"].get(key, 0) + count


def find_histogram_bucket(value: float) -> int:
    """Return the first bucket whose end is not below the value."""
    if value <= 1:
        return _SMALLEST
    return min(_LARGEST, math.ceil(STEPS * math.log2(value) - 1e-9))


def compute_histogram_bucket_end(bucket: int) -> float:
    return float(2 ** (bucket / STEPS))


def count_distribution_values(distribution: Mapping[str, Any] | None) -> int:
    return sum(distribution["in"].values()) if distribution else 0


def compute_mean(distribution: Mapping[str, Any] | None) -> float | None:
    count = count_distribution_values(distribution)
    return distribution["sum"] / count if distribution and count else None


def compute_quantile(distribution: Mapping[str, Any] | None, share: float) -> float | None:
    """Return a quantile in seconds, exact within a bucket's width of 19 %, or None if there are no values."""
    if not (count := count_distribution_values(distribution)) or distribution is None:
        return None
    rank, seen = max(1, math.ceil(share * count)), 0
    for bucket in sorted(map(int, distribution["in"])):
        seen += distribution["in"][str(bucket)]
        if seen >= rank:
            break
    return compute_histogram_bucket_end(bucket) * UNIT_S
