"""Plays the faults of the matrix, some services side by side, and prints a table."""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

import django

from tests import once, processes
from tests.faults import matrix
from tests.faults.backends import BROKERS, DATABASES, REDIS, SQLITE, Backends
from tests.faults.fault import Fault, Run
from tests.faults.table import Tally, render, say
from tests.second_look import Unstable, find_unstable

SHOWN = 20  # problems of a row
SHARED_S = 60.0  # that trials of several faults take, on one service


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    logs = options.logs or Path(tempfile.mkdtemp(prefix="faults-"))
    say(f"seed {options.seed}, trials {options.trials}, {options.parallel} services side by side")
    once.folder()
    started = time.monotonic()
    chosen = _chosen(options)
    runs = [run for backends, faults in chosen.items() for run in _runs(faults, backends, options, logs)]
    runs.sort(key=lambda run: -run.takes_s)
    played = _play([run for run in runs if not _is_alone(run)], options.parallel)
    played += _play([run for run in runs if _is_alone(run)], 1)
    tallies = {backends: _merged(played, backends, faults, options) for backends, faults in chosen.items()}
    unstable: list[Unstable] = []
    if options.trials != "full":
        every = [tally for several in tallies.values() for tally in several]
        unstable = look_again(every, lambda tally: _play(_trials_of(tally, runs), 1))
    say(f"{time.monotonic() - started:.0f} s")
    problems = [problem for backends, several in tallies.items() for problem in _report(backends, several, options)]
    say(*map(str, unstable), *problems)  # last, where who has only the end of the output finds them
    return 1 if problems else 0


def look_again(tallies: Sequence[Tally], play: Callable[[Tally], Sequence[Tally]]) -> list[Unstable]:
    """Play each row with problems once more by itself, and forget the problems of those that hold then.

    Nothing forgives a job that was lost, or recorded twice: then no row is played again.
    """
    failed = {f"{tally.stack}, row {tally.row}, {tally.fault}": tally for tally in tallies if tally.problems}
    if any(tally.lost or tally.recorded_twice for tally in failed.values()):
        return []

    def holds(name: str) -> bool:
        say(f"A second look at {name}")
        again = play(failed[name])
        return bool(again) and all(tally.trials and not tally.problems for tally in again)

    unstable = find_unstable({name: "\n".join(tally.problems) for name, tally in failed.items()}, holds)
    for found in unstable:
        failed[found.name].problems.clear()
    return unstable


def _trials_of(tally: Tally, runs: Iterable[Run]) -> list[Run]:
    """Return those parts of the runs that make a row of the table."""
    key = tally.stack, tally.row, tally.fault
    parts = (
        replace(run, trials=[(fault, numbers)])
        for run in runs
        for fault, numbers in run.trials
        if (str(run.backends), fault.row, fault.title) == key
    )
    return list(parts)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Play the faults of the matrix against the running service, and print a table.",
    )
    parser.add_argument("--rows", type=_rows, default=[], help="such as 1,9; default: all")
    parser.add_argument("--trials", default="ci", help="ci, full, or a number of trials a row; default: ci")
    parser.add_argument("--database", choices=DATABASES, default=SQLITE, help="default: sqlite")
    parser.add_argument("--broker", choices=BROKERS, default=REDIS, help="of the messages; default: redis")
    parser.add_argument("--ahead", action="store_true", help="the workers work ahead, as they do on a GPU")
    parser.add_argument("--seed", type=int, default=1, help="decides every random moment; default: 1")
    parser.add_argument(
        "--parallel", type=int, default=processes.side_by_side(), help="services side by side; default: cores and three"
    )
    parser.add_argument("--logs", type=Path, help="where the logs of failed trials go; default: a new folder")
    return parser.parse_args(arguments)


def _rows(text: str) -> list[str]:
    rows = [row.strip() for row in text.split(",")]
    known = {fault.row for fault in matrix.FAULTS}
    if unknown := [row for row in rows if row not in known]:
        raise argparse.ArgumentTypeError(f"no such row: {', '.join(unknown)}; separate rows by commas")
    return rows


Trials = dict[type[Fault], int]  # how many of each fault


def _chosen(options: argparse.Namespace) -> dict[Backends, Trials]:
    """What is played on which stack."""
    backends = Backends(database=options.database, broker=options.broker, ahead=options.ahead)
    chosen = {backends: {fault: _count(fault, options) for fault in _of_rows(options.rows)}}
    if options.trials == "ci" and backends == Backends() and not options.rows:
        chosen |= {other: dict.fromkeys(_of_rows(rows), 1) for other, rows in matrix.BESIDES.items()}
    return chosen


def _of_rows(rows: Sequence[str]) -> Iterable[type[Fault]]:
    return (fault for fault in matrix.FAULTS if not rows or fault.row in rows)


def _count(fault: type[Fault], options: argparse.Namespace) -> int:
    known = {"ci": fault.ci, "full": fault.full}
    return known[options.trials] if options.trials in known else int(options.trials)


def _runs(faults: Trials, backends: Backends, options: argparse.Namespace, logs: Path) -> Iterable[Run]:
    """The trials in chunks. Those of faults that share a service are together, until they take long enough."""
    common = {"seed": options.seed, "quick": options.trials != "full", "backends": backends, "logs": logs}
    shared: dict[str, Run] = {}  # by the options of the service
    for fault, count in faults.items():
        for start in range(0, count, fault.chunk):
            chunk = (fault, range(start, min(start + fault.chunk, count)))
            if not fault.shares:
                yield Run(trials=[chunk], **common)
                continue
            run = shared.setdefault(str(fault.options), Run(trials=[], **common))
            run.trials.append(chunk)
            if run.takes_s >= SHARED_S:
                yield shared.pop(str(fault.options))
    yield from shared.values()


def _is_alone(run: Run) -> bool:
    """Return whether nothing may run beside it: in a quick run no answering time is judged."""
    return not run.quick and any(fault.alone for fault, _ in run.trials)


def _play(runs: Sequence[Run], parallel: int) -> list[Tally]:
    """So many at once, each in a process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(parallel, mp_context=context, initializer=django.setup) as pool:
        futures: list[Future[list[Tally]]] = [pool.submit(run) for run in runs]
        return [tally for future in as_completed(futures) for tally in future.result()]


def _merged(tallies: Iterable[Tally], backends: Backends, faults: Trials, options: argparse.Namespace) -> list[Tally]:
    """A tally a fault, in the order of the matrix, with the rows that are not played here."""
    merged = {
        (fault.row, fault.title): Tally(row=fault.row, fault=fault.title, stack=str(backends), note="not in this run")
        for fault in faults
    }
    for tally in tallies:
        if tally.stack == str(backends):
            merged[tally.row, tally.fault].add(tally)
    for row, (title, place) in matrix.ELSEWHERE.items():
        if len(faults) == len(matrix.FAULTS) or row in options.rows:
            merged[row, title] = Tally(row=row, fault=title, note=f"tested in {place}")
    return sorted(merged.values(), key=lambda tally: int(tally.row.split()[0]))


def _report(backends: Backends, tallies: Sequence[Tally], options: argparse.Namespace) -> list[str]:
    """Print the table of one stack. Returns what did not hold there, a line each."""
    problems = sum(len(tally.problems) for tally in tallies)
    say("\n" + render(tallies))
    say(f"\n{backends}, seed {options.seed}, trials {options.trials}, {problems} problems")
    return [f"{backends}: {problem}" for tally in tallies for problem in tally.problems[:SHOWN]]
