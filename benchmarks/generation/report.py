"""The figures for people and as JSON: a table a number of clients, and what they show."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.claims import Claim
from benchmarks.claims import as_markdown as aims_as_markdown
from benchmarks.generation.dataset import TITLE
from benchmarks.generation.rounds import Generated
from benchmarks.generation.systems import SYSTEMS
from benchmarks.samples import quantile
from benchmarks.tables import aligned, between_marks, markdown_table

BEGIN, END = "<!-- generation: make bench -- --workload generation --publish -->", "<!-- end of generation -->"
CLAIMED_AT = 16  # clients
HEAD = (
    "system", "workers x threads", "tokens/s", "of static batches", "first text p50 ms", "p95 ms",
    "8 tokens p50 ms", "p99 ms", "CPU ms/token", "MiB", "answers", "wrong",
)  # fmt: skip
LEFT_OUT = ("workers x threads", "of static batches")  # on the page


@dataclass(kw_only=True)
class Results:
    machine: dict[str, str]
    seconds: float
    rounds: int
    measured: list[Generated] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Medians over the rounds; quantiles over the answers of all of them."""

    system: str
    variant: str
    tokens_per_s: float
    firsts_ms: list[float]
    shorts_ms: list[float]
    cpu_ms: float
    resident_mib: float
    answers: int
    wrong: int


def rows(found: Sequence[Generated], clients: int) -> dict[str, Row]:
    """By system, the fastest first."""
    by_system: dict[str, list[Generated]] = {}
    for one in found:
        if one.clients == clients:
            by_system.setdefault(one.system, []).append(one)
    made = [row(measured) for measured in by_system.values()]
    return {each.system: each for each in sorted(made, key=lambda each: -each.tokens_per_s)}


def row(measured: Sequence[Generated]) -> Row:
    windows = [one.window for one in measured]
    return Row(
        system=measured[0].system,
        variant=measured[0].variant,
        tokens_per_s=statistics.median(window.tokens_per_s for window in windows),
        firsts_ms=sorted(first for window in windows for first in window.firsts_ms),
        shorts_ms=sorted(short for window in windows for short in window.shorts_ms),
        cpu_ms=statistics.median(window.cpu_ms for window in windows),
        resident_mib=statistics.median(one.resident_mib for one in measured),
        answers=sum(window.answers for window in windows),
        wrong=sum(window.wrong for window in windows),
    )


def cells(row: Row, static: Row | None) -> list[str]:
    ratio = f"{row.tokens_per_s / static.tokens_per_s:.2f}" if static and static.tokens_per_s else ""
    times = ((row.firsts_ms, (0.5, 0.95)), (row.shorts_ms, (0.5, 0.99)))
    shown = [f"{quantile(found, share):.0f}" if found else "" for found, shares in times for share in shares]
    return [
        SYSTEMS[row.system].label, row.variant, f"{row.tokens_per_s:.1f}", ratio, *shown, f"{row.cpu_ms:.1f}",
        f"{row.resident_mib:.0f}", str(row.answers), str(row.wrong),
    ]  # fmt: skip


def tables(found: Sequence[Generated]) -> list[tuple[str, list[list[str]]]]:
    """A title, and a table of `HEAD`, a number of clients."""
    made = []
    for clients in dict.fromkeys(one.clients for one in found):
        by_system = rows(found, clients)
        made.append((f"{clients} clients", [cells(each, by_system.get("static")) for each in by_system.values()]))
    return made


def claims(found: Sequence[Generated]) -> Iterator[Claim]:
    by_system = rows(found, CLAIMED_AT)
    if not (ours := by_system.get("service")):
        return
    for name, aim in (("static", 1.4), ("serve", 1.0)):
        if other := by_system.get(name):
            yield Claim(what=SYSTEMS[name].label, measured=ours.tokens_per_s / other.tokens_per_s, aim=aim)
    yield Claim(what="first text, p95", measured=quantile(ours.firsts_ms, 0.95), aim=400, unit="ms", at_most=True)
    yield Claim(
        what="an answer of 8 tokens, p50", measured=quantile(ours.shorts_ms, 0.5), aim=1200, unit="ms", at_most=True
    )


def as_text(results: Results) -> str:
    parts = [TITLE]
    for title, lines in tables(results.measured):
        parts += ["", title, aligned([HEAD, *lines])]
    parts += [
        "",
        f"What it shows, {CLAIMED_AT} clients",
        aligned([claim.cells() for claim in claims(results.measured)]),
    ]
    parts += [f"\nleft out: {failure}" for failure in results.failures]
    return "\n".join(parts)


def as_markdown(results: Results) -> str:
    where = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    parts = [f"{TITLE}; {results.rounds} rounds, windows of {results.seconds:g} s; {where}."]
    parts += ["", *aims_as_markdown(list(claims(results.measured)))]
    columns = [place for place, name in enumerate(HEAD) if name not in LEFT_OUT]
    for title, lines in tables(results.measured):
        head, *shown = [[line[column] for column in columns] for line in (HEAD, *lines)]
        parts += ["", f"### Generation, {title}", "", *markdown_table(head, shown)]
    return "\n".join(parts)


def publish(results: Results, docs: Path) -> None:
    between_marks(docs / "benchmarks.md", as_markdown(results), BEGIN, END)
    results.write(docs / "benchmarks-generation.json")
