"""One replica in a process of its own: the engine is loaded there, and nothing here imports torch."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from inference.catalog import tasks
from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.base import Engine
from inference.engines.isolate import run
from inference.errors import InferenceError, ModelUnavailable, OutOfMemory
from inference.tuning import samples

MIN_RUNS, MAX_RUNS = 3, 50


class CannotMeasure(Exception):
    """The model cannot be measured; the message says why, and what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a replica is started with."""

    spec: ModelSpec
    device: str
    threads: int
    own_inputs: Sequence[Any] = ()


class Replica:
    """`with Replica(setup) as replica:` starts the process, loads the model, and ends the process."""

    def __init__(self, setup: Setup) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, setup), daemon=True)
        self.process.start()
        other.close()

    def __enter__(self) -> Replica:
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join()

    def wait_until_loaded(self) -> None:
        self.answer()

    def seconds(self, size: int, length: int, budget_s: float) -> float | None:
        """Of a call of `size` items of `length` tokens: the fastest of several, as what disturbs a call only slows it.
        None when it does not fit in memory."""
        self.connection.send((_seconds, (size, length, budget_s)))
        seconds: float | None = self.answer()
        return seconds

    def answers_to(self, lengths: Sequence[int]) -> list[Any]:
        self.connection.send((_answers, (lengths,)))
        answers: list[Any] = self.answer()
        return answers

    def start_items_per_s(self, size: int, length: int, budget_s: float) -> None:
        """Ask only, so that several replicas run at once; `answer` waits."""
        self.connection.send((_items_per_s, (size, length, budget_s)))

    def answer(self) -> Any:
        try:
            value = self.connection.recv()
        except EOFError as error:
            raise CannotMeasure("The process of the model died; its last words are above.") from error
        if isinstance(value, CannotMeasure):
            raise value
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    setup: Setup
    engine: Engine

    def items(self, size: int, length: int) -> list[Any]:
        return [samples.sample(self.setup.spec, self.engine, length, self.setup.own_inputs)] * size

    def run(self, items: list[Any]) -> list[Any]:
        """Answers; raises the first error among them, and `OutOfMemory` also when only halves fitted."""
        report = run(self.engine, items, dict(tasks.of(self.setup.spec.task).measured_with))
        if report.oom_shape:
            raise OutOfMemory(f"{len(items)} items do not fit.")
        for outcome in report.outcomes:
            if isinstance(outcome, InferenceError):
                raise outcome
        return report.outcomes


def _serve(connection: Connection, setup: Setup) -> None:
    """The process: load, then answer requests until the other side closes."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(setup.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        loaded = _Loaded(setup=setup, engine=loading.ready(setup.spec, setup.device))
    except ModelUnavailable as error:
        connection.send(CannotMeasure(f"{setup.spec.name}: {error.message}"))
        return
    connection.send("loaded")
    while True:
        try:
            request, arguments = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        connection.send(_guarded(request, loaded, arguments))


def _guarded(request: Callable[..., Any], loaded: _Loaded, arguments: tuple[Any, ...]) -> Any:
    try:
        return request(loaded, *arguments)
    except InferenceError as error:
        return CannotMeasure(
            f"The model refused a made-up input: {error.message} Give some of your own, a JSON value a line:"
            " --inputs FILE."
        )


def _seconds(loaded: _Loaded, size: int, length: int, budget_s: float) -> float | None:
    items = loaded.items(size, length)
    took: list[float] = []
    try:
        loaded.run(items)
        while len(took) < MIN_RUNS or (sum(took) < budget_s and len(took) < MAX_RUNS):
            started = time.perf_counter()
            loaded.run(items)
            took.append(time.perf_counter() - started)
            if sum(took) > 4 * budget_s:
                break
    except OutOfMemory:
        return None
    return min(took)


def _answers(loaded: _Loaded, lengths: Sequence[int]) -> list[Any]:
    return [loaded.run(loaded.items(1, length))[0] for length in lengths]


def _items_per_s(loaded: _Loaded, size: int, length: int, budget_s: float) -> float:
    items, done = loaded.items(size, length), 0
    loaded.run(items)
    started = time.perf_counter()
    while time.perf_counter() - started < budget_s:
        loaded.run(items)
        done += size
    return done / (time.perf_counter() - started)
