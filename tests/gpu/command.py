"""Runs the cases, prints a table and writes JSON. Each has a process of its own: one may break its device's context.

The cases are imported where they run, and not with this module: some need Django to be set up.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

from inference.worker.replicas import devices, gpus
from inference.worker.replicas.devices import NO_GPUS
from tests.gpu.machine import Failed, Machine, StandIn

NO_GPU = 2  # the exit status of a check of what is not there
LIBRARIES = (  # of most cases: an import takes longer than what they compute
    "inference.engines.embeddings",
    "inference.engines.pipeline.engine",
    "transformers.models.bert.modeling_bert",
    "transformers.models.bert.tokenization_bert",
    "transformers.pipelines",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    name: str
    passed: bool
    seen: str
    took_s: float


CASES: Mapping[str, str] = {  # module and function, which returns what was seen, and raises `Failed`
    "environment": "finding:environment",
    "discovery": "finding:discovery",
    "small models": "answers:small_models",
    "vectors": "answers:vectors",
    "timing": "costs:timing",
    "cost curve": "costs:cost_curve",
    "memory": "failing:memory",
    "device assert": "failing:device_assert",
    "blocked reload": "service:blocked_reload",
    "past its limit": "failing:past_its_limit",
    "random shapes": "costs:shapes",
    "generation": "answers:generation",
    "graphs": "encoders:graphs",
    "service": "service:whole_service",
}


def main(arguments: Sequence[str] | None = None, template: Executor | None = None) -> int:
    """Return the exit status. `template` is as of `start_template`, which is called where there is none yet."""
    options = _options(arguments)
    if not options.stand_in and (problem := find_problem()):
        sys.stderr.write(f"No GPU can be checked here, as {problem}; `make gpu ON=--stand-in` runs it all on a CPU.\n")
        return NO_GPU
    results = []
    with contextlib.nullcontext(template) if template else start_template(is_cpu=options.stand_in) as process:
        for name in [name for name in CASES if not options.only or name in options.only]:
            broken = name in options.broken
            machine = StandIn(broken=broken) if options.stand_in else Machine(broken=broken)
            results.append(process.submit(play_apart, name, machine).result())
            _say(_line(results[-1]))
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    failed = [result.name for result in results if not result.passed]
    where = "a stand-in" if options.stand_in else "a GPU"
    _say(
        f"{len(results) - len(failed)} of {len(results)} cases hold on {where}" + "".join(f"; not: {n}" for n in failed)
    )
    return 1 if failed else 0


def find_problem() -> str:
    """Return why no GPU can be used here, or nothing where one can."""
    try:
        found = gpus.find_gpus()
    except ValueError as error:
        return str(error)
    return "" if found.gpus else found.why


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description="Check the service on this host's GPU.")
    parser.add_argument("--only", action="append", choices=CASES, default=[], help="this case; may be given again")
    parser.add_argument("--stand-in", action="store_true", help="a CPU in the place of the GPU: shows the cases only")
    parser.add_argument("--broken", action="append", choices=CASES, default=[], help="with its fault: it must fail")
    parser.add_argument("--json", type=Path, help="where the results go")
    return parser.parse_args(arguments)


# Processes


@contextlib.contextmanager
def start_template(*, is_cpu: bool) -> Iterator[Executor]:
    """Start the process that those of the cases are forked from, as replicas are: torch is imported once."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=prepare) as process:
        with patch.dict(os.environ):
            devices.set_up_libraries(1 if is_cpu else devices.count_cores(), is_cpu=is_cpu)
            process.submit(os.getpid).result()  # it is there, and has read that
        yield process


def prepare() -> None:
    """Import what the cases need. No device is touched: what is forked afterwards could not use it."""
    with patch.dict(os.environ, NO_GPUS):
        import django

        django.setup()
        for name in LIBRARIES:
            importlib.import_module(name)
        for case in CASES.values():
            find_function(case)
        from tests import databases

        databases.make_template()


def find_function(case: str) -> Callable[[Machine], str]:
    module, _, name = case.partition(":")
    function: Callable[[Machine], str] = getattr(importlib.import_module(f"tests.gpu.{module}"), name)
    return function


def play_apart(name: str, machine: Machine) -> Result:
    """Play a case in a process that is forked from this one."""
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as process:
            return process.submit(play, name, machine).result()
    except Exception as error:
        return Result(name=name, passed=False, seen=f"its process ended: {error}", took_s=0.0)


def play(name: str, machine: Machine) -> Result:
    started = time.monotonic()  # a figure of the table
    try:
        passed, seen = True, find_function(CASES[name])(machine)
    except Failed as problem:
        passed, seen = False, str(problem)
    except Exception as error:
        passed, seen = False, f"raised {type(error).__name__}: {str(error)[:300]}"
    return Result(name=name, passed=passed, seen=seen, took_s=round(time.monotonic() - started, 1))


def _line(result: Result) -> str:
    return f"{'ok  ' if result.passed else 'FAIL'} {result.name:<15} {result.took_s:>6.1f} s  {result.seen}"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
