"""The figures for people: tables for the terminal and for the page of measurements, and what they show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import plot
from benchmarks.claims import OURS_IN, best_peer, claims, engine_ms, matching
from benchmarks.claims import as_markdown as aims_as_markdown
from benchmarks.offline import Offline
from benchmarks.results import Results, Row
from benchmarks.systems import SYSTEMS
from benchmarks.tables import aligned, between_marks, markdown_table
from benchmarks.workloads import WORKLOADS

BEGIN, END = "<!-- figures: make bench -- --publish -->", "<!-- end of figures -->"
BEGIN_OURS, END_OURS = "<!-- backends: make bench -- --publish without peers -->", "<!-- end of backends -->"
SUMMARY_LOAD, ALONE = "32 clients", "1 client"
HEAD = (
    "system", "workers x threads", "req/s", "of the best peer", "of offline", "p50 ms", "p99 ms", "CPU ms/req",
    "beyond the engine", "MiB", "wrong",
)  # fmt: skip


def cells(row: Row, rows: dict[str, Row], results: Results, workload: str) -> list[str]:
    """Beside a peer of the same precision; the pipeline alone is in float32."""
    peer = best_peer(rows, precision=SYSTEMS[row.system].precision)
    ceiling = results.ceiling(workload)
    beyond_ms = row.cpu_ms - engine_ms(matching(results, workload, row.variant), row.mean_batch)
    return [
        SYSTEMS[row.system].label, row.variant, f"{row.rate:.1f}", f"{row.rate / peer.rate:.2f}" if peer else "",
        f"{row.rate / ceiling.rate:.0%}", f"{row.p50_ms:.1f}", f"{row.p99_ms:.1f}", f"{row.cpu_ms:.2f}",
        f"{beyond_ms:.2f}", f"{row.resident_mib:.0f}", str(row.wrong),
    ]  # fmt: skip


def tables(results: Results) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield a title and the lines of a table for each workload and load."""
    for workload in results.workloads():
        for load in results.loads(workload):
            rows = results.rows(workload, load)
            ordered = sorted(rows.values(), key=lambda row: -row.rate)
            yield (
                f"{WORKLOADS[workload].title}; {load}; {offline_line(results.ceiling(workload))}",
                [cells(row, rows, results, workload) for row in ordered],
            )


def offline_line(offline: Offline) -> str:
    return f"offline {offline.rate:.0f}/s ({offline.variant}, batches of {offline.best} by length)"


def as_text(results: Results) -> str:
    parts = [f"{name}: {value}" for name, value in results.machine.items()]
    for title, lines in tables(results):
        parts += ["", title, aligned([HEAD, *lines])]
    parts += ["", "What it shows", aligned([claim.cells() for claim in claims(results)])]
    parts += [f"\nleft out: {failure}" for failure in results.failures]
    return "\n".join(parts)


def summary(results: Results) -> str:
    """Requests a second with 32 clients, and where they are from: what README shows."""
    lines = []
    for workload in results.workloads():
        rows = results.rows(workload, SUMMARY_LOAD)
        for precision, ours in OURS_IN.items():
            if ours in rows:
                title = WORKLOADS[workload].title if precision == "float32" else f"the same in {precision}"
                lines.append([title, *_best(rows, rows[ours], precision)])
    head = (f"requests a second, {SUMMARY_LOAD}", "this service", "best batching server", "one at a time")
    return "\n".join([*markdown_table(head, lines), "", measured(results)])


def _best(rows: dict[str, Row], ours: Row, precision: str) -> list[str]:
    batching, unbatched = (best_peer(rows, batching=does, precision=precision) for does in (True, False))
    shown = [f"{row.rate:.0f}, p99 {row.p99_ms:.0f} ms" if row else "" for row in (ours, batching, unbatched)]
    if batching:
        shown[1] += f" ({SYSTEMS[batching.system].label.removesuffix(f', {precision}')})"
    return shown


def measured(results: Results) -> str:
    """How, and where."""
    where = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    rounds = f"Medians of {results.rounds} rounds" if results.rounds > 1 else "One round"
    return f"{rounds}, windows of {results.seconds:g} s; {where}."


def as_markdown(results: Results, first: str) -> str:
    """Return what the page shows. The terminal has the other loads and columns too, and the JSON has all of it."""
    parts = [first, "", *aims_as_markdown(claims(results))]
    offline = ["offline", *(f"{results.ceiling(workload).rate:.0f}" for workload in results.workloads())]
    for title, load, show, last in (
        (f"{SUMMARY_LOAD}: requests a second, p99 in ms (wrong)", SUMMARY_LOAD, show_rate_and_p99, [offline]),
        (f"{ALONE}: p50 in ms", ALONE, show_p50, []),
    ):
        if lines := compare_systems(results, load, show):
            parts += ["", f"### {title}", "", *markdown_table(["system", *results.workloads()], [*lines, *last])]
    return "\n".join(parts)


def show_rate_and_p99(row: Row) -> str:
    return f"{row.rate:.1f}, {row.p99_ms:.1f}" + (f" ({row.wrong})" if row.wrong else "")


def show_p50(row: Row) -> str:
    return f"{row.p50_ms:.1f}"


def compare_systems(results: Results, load: str, show: Callable[[Row], str]) -> list[list[str]]:
    """Return a line for each system that was measured under this load, with what `show` makes of each workload."""
    rows = [results.rows(workload, load) for workload in results.workloads()]
    return [
        [SYSTEMS[name].label, *(show(found[name]) if name in found else "" for found in rows)]
        for name in dict.fromkeys(name for found in rows for name in found)
    ]


def publish(results: Results, docs: Path) -> None:
    """Put the figures between the marks of the page and of README.md, with the plot and the JSON beside the page.

    `docs` is docs/measurements. Figures of this service alone have marks of their own.
    """
    if all(SYSTEMS[measurement.system].is_ours for measurement in results.measurements):
        between_marks(docs / "benchmarks.md", as_markdown(results, measured(results)), BEGIN_OURS, END_OURS)
        return
    for page, figures in (
        (docs / "benchmarks.md", as_markdown(results, summary(results))),
        (docs.parents[1] / "README.md", summary(results)),
    ):
        between_marks(page, figures, BEGIN, END)
    plot.write(results, docs / "benchmarks.svg")
    results.write(docs / "benchmarks.json")
