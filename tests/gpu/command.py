"""Runs the cases, prints a table and writes JSON. Each has a process of its own: one may break its device's context."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from inference.worker import devices
from tests.gpu import answers, costs, encoders, failing, finding, service
from tests.gpu.machine import Failed, Machine, StandIn


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    name: str
    passed: bool
    seen: str
    took_s: float


CASES: Mapping[str, Callable[[Machine], str]] = {  # what was seen; they raise `Failed`
    "environment": finding.environment,
    "discovery": finding.discovery,
    "small models": answers.small_models,
    "vectors": answers.vectors,
    "timing": costs.timing,
    "cost curve": costs.cost_curve,
    "memory": failing.memory,
    "device assert": failing.device_assert,
    "blocked reload": service.blocked_reload,
    "past its limit": failing.past_its_limit,
    "random shapes": costs.shapes,
    "generation": answers.generation,
    "graphs": encoders.graphs,
    "service": service.whole_service,
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if not options.stand_in:
        devices.set_up_libraries(devices.cores(), is_cpu=False)  # which the processes of the cases read as they start
    results = []
    for name in [name for name in CASES if not options.only or name in options.only]:
        broken = name in options.broken
        machine = StandIn(broken=broken) if options.stand_in else Machine(broken=broken)
        results.append(play(name, machine) if options.stand_in else _apart(name, machine))
        _say(_line(results[-1]))
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    failed = [result.name for result in results if not result.passed]
    where = "a stand-in" if options.stand_in else "a GPU"
    _say(
        f"{len(results) - len(failed)} of {len(results)} cases hold on {where}" + "".join(f"; not: {n}" for n in failed)
    )
    return 1 if failed else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description="Check the service on this host's GPU.")
    parser.add_argument("--only", action="append", choices=CASES, default=[], help="this case; may be given again")
    parser.add_argument("--stand-in", action="store_true", help="a CPU in the place of the GPU: shows the cases only")
    parser.add_argument("--broken", action="append", choices=CASES, default=[], help="with its fault: it must fail")
    parser.add_argument("--json", type=Path, help="where the results go")
    return parser.parse_args(arguments)


def play(name: str, machine: Machine) -> Result:
    started = time.monotonic()  # a figure of the table
    try:
        passed, seen = True, CASES[name](machine)
    except Failed as problem:
        passed, seen = False, str(problem)
    except Exception as error:
        passed, seen = False, f"raised {type(error).__name__}: {str(error)[:300]}"
    return Result(name=name, passed=passed, seen=seen, took_s=round(time.monotonic() - started, 1))


def _apart(name: str, machine: Machine) -> Result:
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_prepare) as process:
            return process.submit(play, name, machine).result()
    except Exception as error:
        return Result(name=name, passed=False, seen=f"its process ended: {error}", took_s=0.0)


def _prepare() -> None:
    import django

    django.setup()


def _line(result: Result) -> str:
    return f"{'ok  ' if result.passed else 'FAIL'} {result.name:<15} {result.took_s:>6.1f} s  {result.seen}"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
