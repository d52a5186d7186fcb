"""`make bench`: this service beside its peers, in turn, over the same pipeline. docs/benchmarks.md says how to read it.

make bench -- --quick                          about ten minutes
make bench -- --only service,unbatched --workload mixed --clients 32
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import offline, plot, processes, report, service, workloads
from benchmarks.claims import OURS_UNBATCHED
from benchmarks.results import Load
from benchmarks.rounds import TRIAL_CLIENTS, Bench, Plan
from benchmarks.systems import SYSTEMS, variants
from benchmarks.workloads import FOLDER, WORKLOADS

DOCS = Path(__file__).parent.parent / "docs"


def names_of(known: Mapping[str, object], what: str) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is no {what}; known are {', '.join(known)}")
        return names

    return parse


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if int(part or 0))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench --", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true",
                        help=f"one short round, 32 clients, no {OURS_UNBATCHED}, one worker a core")  # fmt: skip
    parser.add_argument("--only", type=names_of(SYSTEMS, "system"), metavar="NAMES",
                        help=f"systems: {', '.join(SYSTEMS)}")  # fmt: skip
    parser.add_argument("--workload", type=names_of(WORKLOADS, "workload"), default=tuple(WORKLOADS), metavar="NAMES",
                        help=f"workloads: {', '.join(WORKLOADS)}")  # fmt: skip
    parser.add_argument("--clients", type=numbers, help="clients in closed loop (default 1,32,128; quick: 32)")
    parser.add_argument("--poisson", type=numbers, metavar="PERCENT",
                        help="random arrivals, in %% of the rate at 32 clients (default 50,80; 0: none)")  # fmt: skip
    parser.add_argument("--rounds", type=int, help="default 3; quick: 1")
    parser.add_argument("--seconds", type=float, help="length of a window (default 8; quick: 2)")
    parser.add_argument("--publish", action="store_true", help="write the figures, the plot and the JSON into docs/")
    return parser.parse_args()


def make_plan(options: argparse.Namespace) -> Plan:
    """Options that were given win over the defaults of a full or a quick run."""
    clients, shares, rounds, seconds = ((32,), (), 1, 2.0) if options.quick else ((1, 32, 128), (50, 80), 3, 8.0)
    clients = clients if options.clients is None else options.clients
    shares = shares if options.poisson is None else options.poisson
    if shares and TRIAL_CLIENTS not in clients:
        sys.exit(f"--poisson needs the rate at {TRIAL_CLIENTS} clients: add {TRIAL_CLIENTS} to --clients.")
    systems = tuple(name for name in SYSTEMS if not (options.quick and name == OURS_UNBATCHED))
    return Plan(
        rounds=options.rounds or rounds, seconds=options.seconds or seconds, workloads=options.workload,
        systems=options.only or systems, variants=variants()[:1] if options.quick else variants(),
        offline_sizes=(4, 8, 32) if options.quick else offline.BATCH_SIZES,
        loads=(*(Load(clients=count) for count in clients), *(Load(share=share / 100) for share in shares)),
    )  # fmt: skip


def main() -> None:
    options = parse_arguments()
    plan = make_plan(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped."))
    if any(SYSTEMS[name].is_ours for name in plan.systems):
        service.require_environment()
    processes.adopt_orphans()
    workloads.prepare(WORKLOADS[name] for name in plan.workloads)
    results = Bench(plan).run()
    print(report.as_text(results))
    plot.write(results, FOLDER / "benchmarks.svg")
    results.write(FOLDER / "benchmarks.json")
    print(f"\nEverything that was measured: {FOLDER / 'benchmarks.json'}; the plot: {FOLDER / 'benchmarks.svg'}")
    if options.publish:
        report.publish(results, DOCS)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Stopped.")
