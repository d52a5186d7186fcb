"""The table at the end: a line a row of the matrix."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

HEADINGS = (
    "row", "fault", "trials", "attempted", "accepted", "succeeded", "failed", "lost", "executed twice",
    "recorded twice", "recovery median s", "recovery longest s", "result",
)  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Tally:
    """What the trials of one row came to."""

    row: str
    fault: str
    stack: str = ""
    trials: int = 0
    attempted: int = 0
    accepted: int = 0
    succeeded: int = 0
    failed: int = 0
    lost: int = 0
    executed_twice: int = 0
    recorded_twice: int = 0
    recoveries_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)  # the largest of what else was measured
    note: str = ""  # why there were no trials

    def add(self, other: Tally) -> None:
        for name in ("trials", "attempted", "accepted", "succeeded", "failed", "lost", "executed_twice"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.recorded_twice += other.recorded_twice
        self.recoveries_s += other.recoveries_s
        self.problems += other.problems
        self.measure(other.measured)
        self.note = other.note

    def measure(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.measured[name] = max(value, self.measured.get(name, value))

    @property
    def result(self) -> str:
        if not self.trials and not self.problems:
            return self.note
        found = [f"{len(self.problems)} PROBLEMS" if self.problems else "holds"]
        return "; ".join(found + [f"{name} at most {value:.3g}" for name, value in self.measured.items()])

    def cells(self) -> list[str]:
        if not self.trials:
            return [self.row, self.fault, *["-"] * (len(HEADINGS) - 3), self.result]
        median = longest = "-"
        if self.recoveries_s:
            median, longest = f"{statistics.median(self.recoveries_s):.1f}", f"{max(self.recoveries_s):.1f}"
        counts = (self.trials, self.attempted, self.accepted, self.succeeded, self.failed, self.lost)
        return [
            self.row, self.fault, *map(str, counts), str(self.executed_twice), str(self.recorded_twice), median,
            longest, self.result,
        ]  # fmt: skip


def render(tallies: Iterable[Tally]) -> str:
    """Readable in a terminal, and Markdown."""
    lines = [list(HEADINGS), *(tally.cells() for tally in tallies)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    rows = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    rows.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(rows)


def say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
