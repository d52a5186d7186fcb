"""The workload `generation` of `make bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tqdm import tqdm

from benchmarks.generation import dataset, report, rounds
from benchmarks.generation.dataset import NAME
from benchmarks.generation.rounds import Plan
from benchmarks.generation.systems import SYSTEMS
from benchmarks.tables import machine
from benchmarks.workloads import FOLDER

__all__ = ("NAME", "SYSTEMS", "make_plan", "run")


def make_plan(options: argparse.Namespace) -> Plan:
    clients, number, seconds = ((16,), 1, 15.0) if options.quick else ((16, 64), 3, 30.0)
    return Plan(
        systems=tuple(name for name in options.only or SYSTEMS if name in SYSTEMS),
        clients=options.clients or clients,
        rounds=options.rounds or number,
        seconds=options.seconds or seconds,
    )


def run(plan: Plan, docs: Path | None) -> None:
    """`docs`: where to publish the figures."""
    dataset.prepare()
    results = report.Results(machine=machine(), seconds=plan.seconds, rounds=plan.rounds)
    with tqdm(total=plan.steps, unit="run", dynamic_ncols=True) as bar:
        results.measured += rounds.run(plan, dataset.load_examples(), bar, results.failures)
    print(report.as_text(results))
    results.write(FOLDER / "benchmarks-generation.json")
    if docs:
        report.publish(results, docs)
