"""What happened in some time, as a tree of numbers that adds up: over writers, over models and over time.

```
ended      outcomes: "succeeded", "cancelled", "expired", or "failed CODE"; of a job that runs in parts, one
wait, run  seconds, of each job that ran, or part of one; first: seconds to the first token
batch      items of a batch
real, padded  tokens that a batch was given, and with its padding
engine_s   that batches took
cost       seconds of batches that were predicted: expected_s, real_s, and the sum of the differences, off_s
tokens     generated
refused    requests by error code
requests   answers of web processes, by "METHOD address status"
now        what was the case at `samples` moments, summed; most: the largest of them
```
A distribution is {"sum": of the values, "in": {bucket: how many}}, of buckets a quarter of a doubling wide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

Tally = dict[str, Any]

MOST = "most"  # below it the larger number stands; elsewhere the sum
STEPS = 4  # buckets a doubling
UNIT_S = 0.001  # of durations
_SMALLEST, _LARGEST = 0, 30 * STEPS


def add(tally: Tally, more: Mapping[str, Any], *, largest: bool = False) -> Tally:
    """Into `tally`, which is returned."""
    for key, value in more.items():
        if isinstance(value, Mapping):
            add(tally.setdefault(key, {}), value, largest=largest or key == MOST)
        else:
            before = tally.get(key, 0)
            tally[key] = max(before, value) if largest else before + value
    return tally


def sum_of(tallies: Iterable[Mapping[str, Any]]) -> Tally:
    total: Tally = {}
    for tally in tallies:
        add(total, tally)
    return total


def observe(tally: Tally, name: str, value: float, *, unit: float = 1.0, count: int = 1) -> None:
    """One more value, or `count` of the same, of a distribution. Its bucket ends at `end_of(bucket) * unit`."""
    found = tally.setdefault(name, {"sum": 0.0, "in": {}})
    key = str(bucket_of(value / unit))
    found["sum"] += value * count
    found["in"][key] = found["in"].get(key, 0) + count


def bucket_of(value: float) -> int:
    """The first whose end is not below the value."""
    if value <= 1:
        return _SMALLEST
    return min(_LARGEST, math.ceil(STEPS * math.log2(value) - 1e-9))


def end_of(bucket: int) -> float:
    return float(2 ** (bucket / STEPS))


def count_of(distribution: Mapping[str, Any] | None) -> int:
    return sum(distribution["in"].values()) if distribution else 0


def mean(distribution: Mapping[str, Any] | None) -> float | None:
    count = count_of(distribution)
    return distribution["sum"] / count if distribution and count else None


def quantile(distribution: Mapping[str, Any] | None, share: float) -> float | None:
    """Seconds, within a bucket's width: 19 %. None where there is nothing."""
    if not (count := count_of(distribution)) or distribution is None:
        return None
    rank, seen = max(1, math.ceil(share * count)), 0
    for bucket in sorted(map(int, distribution["in"])):
        seen += distribution["in"][str(bucket)]
        if seen >= rank:
            break
    return end_of(bucket) * UNIT_S
