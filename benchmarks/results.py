"""What was measured, as it is written to JSON, and the medians over the rounds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.offline import Offline
from benchmarks.samples import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Closed loop with `clients`, or random arrivals at `share` of the system's own rate at 32 clients."""

    clients: int = 0
    share: float = 0.0

    def __str__(self) -> str:
        if self.clients:
            return f"{self.clients} client{'s' if self.clients > 1 else ''}"
        return f"Poisson, {self.share:.0%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One system under one load in one round."""

    workload: str
    system: str
    load: str
    round: int
    variant: str  # workers x threads
    sample: Sample
    resident_mib: float  # proportional set size of all processes, at the end of the window
    mean_batch: float | None  # items a call; of this service only


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Medians over the rounds."""

    system: str
    variant: str
    rate: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    resident_mib: float
    mean_batch: float | None
    wrong: int
    generator_share: float


@dataclass(kw_only=True)
class Results:
    machine: dict[str, str]
    seconds: float
    rounds: int
    offline: dict[str, list[Offline]] = field(default_factory=dict)  # by workload
    measurements: list[Measurement] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def workloads(self) -> list[str]:
        return list(dict.fromkeys(m.workload for m in self.measurements))

    def loads(self, workload: str) -> list[str]:
        return list(dict.fromkeys(m.load for m in self.measurements if m.workload == workload))

    def rows(self, workload: str, load: str) -> dict[str, Row]:
        """By system, in the order in which they were measured first."""
        found: dict[str, list[Measurement]] = {}
        for measurement in self.measurements:
            if (measurement.workload, measurement.load) == (workload, load):
                found.setdefault(measurement.system, []).append(measurement)
        return {system: row(measurements) for system, measurements in found.items()}

    def ceiling(self, workload: str) -> Offline:
        """The pipeline alone in the better use of the cores."""
        return max(self.offline[workload], key=lambda offline: offline.rate)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def row(measurements: list[Measurement]) -> Row:
    def median(value: Callable[[Measurement], float]) -> float:
        return statistics.median(map(value, measurements))

    batches = [m.mean_batch for m in measurements if m.mean_batch]
    return Row(
        system=measurements[0].system,
        variant=measurements[0].variant,
        rate=median(lambda m: m.sample.rate),
        p50_ms=median(lambda m: m.sample.p50_ms),
        p99_ms=median(lambda m: m.sample.p99_ms),
        cpu_ms=median(lambda m: m.sample.cpu_ms),
        resident_mib=median(lambda m: m.resident_mib),
        mean_batch=statistics.median(batches) if batches else None,
        wrong=sum(m.sample.wrong + m.sample.unanswered for m in measurements),
        generator_share=median(lambda m: m.sample.generator_share),
    )
