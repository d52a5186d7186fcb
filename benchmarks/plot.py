"""The figures as one SVG: requests a second at 32 clients, a panel a workload, the pipeline alone as a line."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from benchmarks.results import Results, Row
from benchmarks.systems import SYSTEMS
from benchmarks.workloads import WORKLOADS

LOAD = "32 clients"
WIDTH, LABELS, BAR, GAP, HEAD, MARGIN = 900, 300, 18, 6, 44, 16
FULL = WIDTH - LABELS - 130  # pixels of the longest bar
STYLE = """
text { font: 13px sans-serif; fill: #24292f; } .title { font-weight: 600; } .note { fill: #57606a; }
.ours { fill: #0969da; } .peer { fill: #afb8c1; }
.ceiling { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 4 3; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .note { fill: #9198a1; } .peer { fill: #656c76; }
.ours { fill: #4493f8; } }
"""


def write(results: Results, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_svg(results))


def as_svg(results: Results) -> str:
    parts: list[str] = []
    top = MARGIN
    for workload in results.workloads():
        if rows := results.rows(workload, LOAD):
            parts += panel(results, workload, rows, top)
            top += HEAD + len(rows) * (BAR + GAP) + MARGIN
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>", ""])


def panel(results: Results, workload: str, rows: dict[str, Row], top: float) -> Iterator[str]:
    ceiling = results.ceiling(workload).rate
    scale = FULL / max(ceiling, *(row.rate for row in rows.values()))
    yield text(MARGIN, top + 16, f"{WORKLOADS[workload].title}: requests/s, {LOAD}", "title")
    yield text(LABELS + ceiling * scale, top + 34, f"the pipeline alone, {ceiling:.0f}", "note", "end")
    begin = top + HEAD
    for index, row in enumerate(sorted(rows.values(), key=lambda row: -row.rate)):
        yield from bar(row, begin + index * (BAR + GAP), scale)
    at, end = LABELS + ceiling * scale, begin + len(rows) * (BAR + GAP)
    yield f'<line class="ceiling" x1="{at:.0f}" x2="{at:.0f}" y1="{begin - 4:.0f}" y2="{end:.0f}"/>'


def bar(row: Row, top: float, scale: float) -> Iterator[str]:
    system = SYSTEMS[row.system]
    yield text(LABELS - 8, top + 14, system.label, "label", "end")
    kind = "ours" if system.is_ours else "peer"
    yield f'<rect class="{kind}" x="{LABELS}" y="{top:.0f}" width="{row.rate * scale:.1f}" height="{BAR}" rx="2"/>'
    yield text(LABELS + row.rate * scale + 6, top + 14, f"{row.rate:.0f}   p99 {row.p99_ms:.0f} ms", "note")


def text(x: float, y: float, content: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(content)}</text>'
