"""Plays the faults of the matrix, each in a process of its own, and prints a table."""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

import django

from tests.faults import matrix
from tests.faults.backends import BROKERS, DATABASES, REDIS, SQLITE, Backends
from tests.faults.fault import Fault, Run
from tests.faults.table import Tally, render, say

SHOWN = 20  # problems of a row


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    logs = options.logs or Path(tempfile.mkdtemp(prefix="faults-"))
    say(f"{_what(options)}, {options.parallel} services side by side")
    started = time.monotonic()
    runs = [run for fault in _chosen(options.rows) for run in _runs(fault, options, logs)]
    tallies = _play([run for run in runs if not run.fault.alone], options.parallel)
    tallies += _play([run for run in runs if run.fault.alone], 1)
    return _report(_merged(tallies, options.rows), options, time.monotonic() - started)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Play the faults of the matrix against the running service, and print a table.",
    )
    parser.add_argument("--rows", type=lambda text: text.split(","), default=[], help="such as 1,9; default: all")
    parser.add_argument("--trials", default="ci", help="ci, full, or a number of trials a row; default: ci")
    parser.add_argument("--database", choices=DATABASES, default=SQLITE, help="default: sqlite")
    parser.add_argument("--broker", choices=BROKERS, default=REDIS, help="of the messages; default: redis")
    parser.add_argument("--seed", type=int, default=1, help="decides every random moment; default: 1")
    parser.add_argument("--parallel", type=int, default=3, help="services side by side; default: 3")
    parser.add_argument("--logs", type=Path, help="where the logs of failed trials go; default: a new folder")
    return parser.parse_args(arguments)


def _chosen(rows: Sequence[str]) -> Iterable[type[Fault]]:
    return (fault for fault in matrix.FAULTS if not rows or fault.row in rows)


def _what(options: argparse.Namespace) -> str:
    return f"{options.database} with {options.broker}, seed {options.seed}, trials {options.trials}"


def _runs(fault: type[Fault], options: argparse.Namespace, logs: Path) -> Iterable[Run]:
    """The trials of a fault in chunks."""
    count = {"ci": fault.ci, "full": fault.full}.get(options.trials)
    count = int(options.trials) if count is None else count
    backends = Backends(database=options.database, broker=options.broker)
    for start in range(0, count, fault.chunk):
        numbers = range(start, min(start + fault.chunk, count))
        yield Run(
            fault=fault,
            numbers=numbers,
            seed=options.seed,
            quick=options.trials != "full",
            backends=backends,
            logs=logs,
        )


def _play(runs: Sequence[Run], parallel: int) -> list[Tally]:
    """Each run in a process of its own, since each has a database."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(parallel, mp_context=context, initializer=django.setup, max_tasks_per_child=1) as pool:
        futures: list[Future[Tally]] = [pool.submit(run) for run in runs]
        return [future.result() for future in as_completed(futures)]


def _merged(tallies: Iterable[Tally], rows: Sequence[str]) -> list[Tally]:
    """A tally a fault, in the order of the matrix, with the rows that are not played here."""
    merged = {
        (fault.row, fault.title): Tally(row=fault.row, fault=fault.title, note="not in this run")
        for fault in _chosen(rows)
    }
    for tally in tallies:
        merged[tally.row, tally.fault].add(tally)
    for row, (title, place) in matrix.ELSEWHERE.items():
        if not rows or row in rows:
            merged[row, title] = Tally(row=row, fault=title, note=f"tested in {place}")
    return sorted(merged.values(), key=lambda tally: int(tally.row.split()[0]))


def _report(tallies: Sequence[Tally], options: argparse.Namespace, took_s: float) -> int:
    problems = sum(len(tally.problems) for tally in tallies)
    say("\n" + render(tallies))
    say(f"\n{_what(options)}, {took_s:.0f} s, {problems} problems")
    for tally in tallies:
        say(*(f"  {problem}" for problem in tally.problems[:SHOWN]))
    return 1 if problems else 0
