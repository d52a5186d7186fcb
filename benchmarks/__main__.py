"""`make bench`: this service beside its peers, in turn, over the same pipeline.

docs/measurements/benchmarks.md says how to read it.

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
from benchmarks.generation import bench as generation
from benchmarks.results import Load
from benchmarks.rounds import TRIAL_CLIENTS, Bench, Plan
from benchmarks.systems import SYSTEMS, Variant, variants
from benchmarks.workloads import FOLDER, WORKLOADS

DOCS = Path(__file__).parent.parent / "docs" / "measurements"
EVERY_SYSTEM = {**SYSTEMS, **generation.SYSTEMS}
EVERY_WORKLOAD = {**WORKLOADS, generation.NAME: generation}


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
    parser.add_argument(
        "--quick", action="store_true", help=f"one short round, 32 clients, no {OURS_UNBATCHED}, one worker a core"
    )
    parser.add_argument(
        "--only", type=names_of(EVERY_SYSTEM, "system"), metavar="NAMES", help=f"systems: {', '.join(EVERY_SYSTEM)}"
    )
    parser.add_argument(
        "--workload",
        type=names_of(EVERY_WORKLOAD, "workload"),
        default=tuple(EVERY_WORKLOAD),
        metavar="NAMES",
        help=f"workloads: {', '.join(EVERY_WORKLOAD)}",
    )
    parser.add_argument("--workers", type=int, help="of each system, with a thread each (default: what is best for it)")
    parser.add_argument(
        "--clients", type=numbers, help="in closed loop (default 1,32,128, generation 16,64; quick: 32, 16)"
    )
    parser.add_argument(
        "--poisson",
        type=numbers,
        metavar="PERCENT",
        help="random arrivals, in %% of the rate at 32 clients (default 50,80; 0: none)",
    )
    parser.add_argument("--rounds", type=int, help="default 3; quick: 1")
    parser.add_argument("--seconds", type=float, help="length of a window (default 8, of generation 30; quick: 2, 15)")
    parser.add_argument("--publish", action="store_true", help="write the figures, the plot and the JSON into docs/")
    return parser.parse_args()


def make_plan(options: argparse.Namespace) -> Plan:
    """Options that were given win over the defaults of a full or a quick run."""
    clients, shares, rounds, seconds = ((32,), (), 1, 2.0) if options.quick else ((1, 32, 128), (50, 80), 3, 8.0)
    clients = clients if options.clients is None else options.clients
    shares = shares if options.poisson is None else options.poisson
    workload_names = tuple(name for name in options.workload if name in WORKLOADS)
    if workload_names and shares and TRIAL_CLIENTS not in clients:
        sys.exit(f"--poisson needs the rate at {TRIAL_CLIENTS} clients: add {TRIAL_CLIENTS} to --clients.")
    systems = tuple(
        name
        for name, system in SYSTEMS.items()
        if not system.only_if_named and not (options.quick and name == OURS_UNBATCHED)
    )
    tried = variants()[:1] if options.quick else variants()
    if options.workers:
        tried = (Variant(workers=options.workers, threads=1),)
    return Plan(
        rounds=options.rounds or rounds,
        seconds=options.seconds or seconds,
        workloads=workload_names,
        systems=tuple(name for name in options.only or systems if name in SYSTEMS),
        variants=tried,
        offline_sizes=(4, 8, 32) if options.quick else offline.BATCH_SIZES,
        loads=(*(Load(clients=count) for count in clients), *(Load(share=share / 100) for share in shares)),
    )


def main() -> None:
    options = parse_arguments()
    plan = make_plan(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped."))
    service.require_environment()
    processes.adopt_orphans()
    if plan.workloads and plan.systems:
        bench(plan, publish=options.publish)
    if generation.NAME in options.workload:
        generation.run(generation.make_plan(options), DOCS if options.publish else None)


def bench(plan: Plan, *, publish: bool) -> None:
    workloads.prepare(WORKLOADS[name] for name in plan.workloads)
    results = Bench(plan).run()
    print(report.as_text(results))
    plot.write(results, FOLDER / "benchmarks.svg")
    results.write(FOLDER / "benchmarks.json")
    print(f"\nEverything that was measured: {FOLDER / 'benchmarks.json'}; the plot: {FOLDER / 'benchmarks.svg'}")
    if publish:
        report.publish(results, DOCS)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Stopped.")
