"""Compares batching policies in simulated time: this project's, and those of other servers.

What a call costs is known to the simulator only; our policy learns it from its own, noisy calls, and starts knowing
nothing. Each policy gets the same jobs. Loads are shares of what the best policy reaches in closed loop.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

from benchmarks.simulator.policies import POLICIES
from benchmarks.simulator.simulation import Result, Scenario, Simulation
from benchmarks.simulator.workloads import LENGTHS, MACHINES

LOADS = (0.5, 0.8)
HEADER = f"{'policy':<16}{'items/s':>9}{'p50 ms':>9}{'p99 ms':>9}{'padding':>9}{'batch':>7}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    machine: str
    lengths: str
    arrivals: str
    results: dict[str, Result]  # by policy


def compare(scenario: Scenario, arrivals: str) -> Comparison:
    results = {name: Simulation(scenario, policy()).run() for name, policy in POLICIES.items()}
    return Comparison(machine=scenario.machine, lengths=scenario.lengths, arrivals=arrivals, results=results)


def comparisons(base: Scenario, machines: Sequence[str], lengths: Sequence[str]) -> Iterator[Comparison]:
    for machine, mix in product(machines, lengths):
        scenario = replace(base, machine=machine, lengths=mix)
        closed = compare(scenario, f"{base.clients} clients")
        yield closed
        capacity = max(result.items_per_s for result in closed.results.values())
        for load in LOADS:
            yield compare(replace(scenario, items_per_s=load * capacity), f"Poisson at {load:.0%}")


def table(comparison: Comparison) -> str:
    lines = [f"{comparison.machine}, {comparison.lengths} lengths, {comparison.arrivals}", HEADER]
    lines += [
        f"{policy:<16}{r.items_per_s:>9.1f}{r.p50_ms:>9.1f}{r.p99_ms:>9.1f}{r.padding:>9.0%}{r.mean_batch:>7.1f}"
        for policy, r in comparison.results.items()
    ]
    return "\n".join(lines) + "\n"


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__)
    parser.add_argument("--machine", choices=MACHINES, action="append", help="only this one (may be repeated)")
    parser.add_argument("--lengths", choices=LENGTHS, action="append", help="only this mix (may be repeated)")
    parser.add_argument("--jobs", type=int, default=4000, help="jobs in each run (%(default)s)")
    parser.add_argument("--replicas", type=int, default=1, help="calls that run at once (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same figures (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    base = Scenario(machine="", lengths="", jobs=options.jobs, replicas=options.replicas, seed=options.seed)
    found = comparisons(base, options.machine or list(MACHINES), options.lengths or list(LENGTHS))
    if options.json:
        print(json.dumps([asdict(comparison) for comparison in found], indent=1))
    else:
        for comparison in found:
            print(table(comparison), flush=True)


if __name__ == "__main__":
    main()
