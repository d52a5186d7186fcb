"""What the figures are to show, and whether they do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.offline import Offline
from benchmarks.results import Results, Row
from benchmarks.systems import SYSTEMS
from benchmarks.tables import markdown_table

OURS = "service"
OURS_IN = {"float32": OURS, "bfloat16": "bfloat16"}  # by precision, computed by torch
UNBATCHED = "-1"  # ends the name of ours without batches
OURS_UNBATCHED = f"{OURS}{UNBATCHED}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One thing that the benchmark is to show."""

    what: str
    measured: float
    aim: float
    unit: str = "x"
    at_most: bool = False

    @property
    def is_held(self) -> bool:
        return self.measured <= self.aim if self.at_most else self.measured >= self.aim

    def cells(self) -> list[str]:
        bound = "at most" if self.at_most else "at least"
        held = "held" if self.is_held else "NOT held"
        return [self.what, f"{self.measured:.2f} {self.unit}", f"{bound} {self.aim:g}", held]


def as_markdown(claims: Sequence[Claim]) -> list[str]:
    """Return the lines of a page: the number of aims that are held, and a table of the others."""
    missed = [claim.cells()[:-1] for claim in claims if not claim.is_held]
    if not missed:
        return [f"All {len(claims)} aims are held."] if claims else []
    lines = [f"Of {len(claims)} aims {len(claims) - len(missed)} are held. The others are:", ""]
    return lines + markdown_table(["", "measured", "aim"], missed)


def claims(results: Results) -> list[Claim]:
    """Of what was measured; nothing is claimed of what was not."""
    found: list[Claim] = []
    for workload in results.workloads():
        for load in results.loads(workload):
            rows = results.rows(workload, load)
            found += against_unbatched(f"{workload}, {load}", rows)
            if ours := rows.get(OURS):
                found += claims_of(results, workload, load, ours, rows)
    return found


def against_unbatched(where: str, rows: dict[str, Row]) -> Iterator[Claim]:
    if not where.endswith("clients"):  # one makes no batch, Poisson sets the rate
        return
    for name, row in rows.items():
        if one := rows.get(f"{name}{UNBATCHED}"):
            yield Claim(what=f"{where}: {SYSTEMS[one.system].label}", measured=row.rate / one.rate, aim=1)


def claims_of(results: Results, workload: str, load: str, ours: Row, rows: dict[str, Row]) -> Iterator[Claim]:
    where = f"{workload}, {load}"
    if load == "1 client":
        bare_ms = matching(results, workload, ours.variant).bare_ms
        aim = 0 if workload == "short" else 6
        yield Claim(
            what=f"{where}: over the bare pipeline", measured=ours.p50_ms - bare_ms, aim=aim, unit="ms", at_most=True
        )
    if load == "32 clients":
        yield from claims_at_32(results, workload, where, ours, rows)


def claims_at_32(results: Results, workload: str, where: str, ours: Row, rows: dict[str, Row]) -> Iterator[Claim]:
    peer, unbatched = best_peer(rows, batching=True), best_peer(rows, batching=False)
    if workload == "mixed":
        offline = matching(results, workload, ours.variant)
        yield Claim(what=f"{where}: the pipeline alone, sorted", measured=ours.rate / offline.rate, aim=0.85)
        for other, aim in ((peer, 3), (unbatched, 1.7)):
            if other:
                label = SYSTEMS[other.system].label
                yield Claim(what=f"{where}: {label}", measured=ours.rate / other.rate, aim=aim)
                yield Claim(what=f"{where}: p99 of {label}", measured=ours.p99_ms / other.p99_ms, aim=1, at_most=True)
    else:
        if workload == "tiny":
            compared = {"starlette": 0.6, "litserve": 1.0, "service-streamer": 1.0, "celery-batches": 1.0}
        else:
            compared = {peer.system: {"short": 1.0, "fill": 0.97}[workload]} if peer else {}
        for name, aim in compared.items():
            if name in rows:
                label = SYSTEMS[name].label
                yield Claim(what=f"{where}: {label}", measured=ours.rate / rows[name].rate, aim=aim)
    if short := rows.get(OURS_IN["bfloat16"]):
        yield from claims_of_bfloat16(workload, where, short, ours, rows)
    if workload == "tiny":
        engine = engine_ms(matching(results, workload, ours.variant), ours.mean_batch)
        yield Claim(
            what=f"{where}: CPU outside the engine", measured=ours.cpu_ms - engine, aim=1.2, unit="ms", at_most=True
        )


def claims_of_bfloat16(workload: str, where: str, short: Row, ours: Row, rows: dict[str, Row]) -> Iterator[Claim]:
    same = best_peer(rows, batching=True, precision="bfloat16")
    if workload == "mixed":
        compared = [(ours, 2.2), (best_peer(rows, batching=True), 6.0), (same, 2.5)]
    else:
        compared = [(same, 1.0)] if workload == "short" else []
    for other, aim in compared:
        if other:
            label = SYSTEMS[other.system].label
            yield Claim(what=f"{where}, bfloat16: {label}", measured=short.rate / other.rate, aim=aim)


def engine_ms(offline: Offline, batch: float | None) -> float:
    """CPU of the pipeline alone for one item, in batches of `batch`, or in its best ones."""
    if batch is None:
        return offline.cpu_ms[offline.best]
    sizes = sorted(offline.cpu_ms)
    above = next((size for size in sizes if size >= batch), sizes[-1])
    below = max((size for size in sizes if size <= batch), default=sizes[0])
    share = (math.log(batch) - math.log(below)) / (math.log(above) - math.log(below)) if above > below else 0.0
    return offline.cpu_ms[below] + share * (offline.cpu_ms[above] - offline.cpu_ms[below])


def matching(results: Results, workload: str, variant: str) -> Offline:
    """The pipeline alone with the same processes and threads."""
    return next(offline for offline in results.offline[workload] if offline.variant == variant)


def best_peer(rows: dict[str, Row], *, batching: bool | None = None, precision: str = "float32") -> Row | None:
    peers = [row for name, row in rows.items() if not SYSTEMS[name].is_ours and SYSTEMS[name].precision == precision]
    if batching is not None:
        peers = [row for row in peers if SYSTEMS[row.system].batches == batching]
    return max(peers, key=lambda row: row.rate, default=None)
