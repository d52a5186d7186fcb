"""A replica in a process of its own: the engine is loaded there, and this process never imports torch."""

import multiprocessing
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, ParamSpec, Self, TypeVar, cast

from inference.catalog import tasks
from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.artifacts import memory
from inference.engines.base import Engine
from inference.engines.runtime import engine_calls
from inference.engines.stepper import OPEN, Progress, Stepper
from inference.errors import InferenceError, ModelUnavailable, OutOfMemory
from inference.worker.replicas import devices
from inference.worker.replicas.gpus import Device
from tools.tuning import samples

MIN_RUNS, MAX_RUNS = 3, 50
MOST_COMPARED = 500  # of the user's own inputs
ANSWER = 128  # tokens that a row generates before another one takes its place

P = ParamSpec("P")
T = TypeVar("T")
Length = int | tuple[int, ...]  # tokens of each item; the items take the lengths of a tuple in turn


class CannotMeasure(Exception):
    """The model cannot be measured; the message says why, and what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The model, the device and the threads with which a replica is started, and the user's own inputs."""

    spec: ModelSpec
    device: Device
    threads: int
    own_inputs: Sequence[Any] = ()

    @property
    def is_on_cpu(self) -> bool:
        return self.device.name == devices.CPU


class Replica:
    """A replica: `with Replica(setup) as replica:` starts its process, which loads the model, and ends it."""

    def __init__(self, setup: Setup) -> None:
        self._process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self._loading = self._process.submit(_load, setup)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.shutdown(cancel_futures=True)

    def wait_until_loaded(self) -> None:
        wait_for_result(self._loading)

    def start_measurement(self, measure: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Future[T]:
        """Start one of the functions below in the process, and do not wait, so that several replicas run at once."""
        return self._process.submit(measure, *arguments, **named)

    def run_measurement(self, measure: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        return wait_for_result(self.start_measurement(measure, *arguments, **named))


def wait_for_result(future: Future[T]) -> T:
    """Wait for the result of `Replica.start_measurement` and return it. Raises `CannotMeasure`."""
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise CannotMeasure("The process of the model died; its last words are above.") from error
    except InferenceError as error:
        raise CannotMeasure(
            f"The model refused a made-up input: {error.message} Give some of your own, a JSON value a line:"
            " --inputs FILE."
        ) from error


# The functions that run in the process of the replica.

_setup: Setup
_engine: Engine
_bytes: int


def _load(setup: Setup) -> None:
    global _setup, _engine, _bytes
    devices.set_up_libraries(setup.threads, is_cpu=setup.is_on_cpu)
    device = devices.hide_other_gpus(setup.device.visible)
    try:
        with memory.measure_memory_taken(setup.spec, device) as taken:
            engine = loading.load_engine(setup.spec, device)
        _setup, _engine, _bytes = setup, engine, taken.bytes
    except ModelUnavailable as error:
        raise CannotMeasure(f"{setup.spec.name}: {error.message}") from error


def measure_call_s(size: int, length: Length, budget_s: float) -> float | None:
    """Return the seconds of a call of `size` items of `length` tokens, or None if it does not fit in memory.

    It is the fastest of several calls, as all that disturbs a call only slows it.
    """
    items = _items(size, length)
    took: list[float] = []
    try:
        _run(items)
        while len(took) < MIN_RUNS or (sum(took) < budget_s and len(took) < MAX_RUNS):
            started = time.perf_counter()
            _run(items)
            took.append(time.perf_counter() - started)
            if sum(took) > 4 * budget_s:
                break
    except OutOfMemory:
        return None
    return min(took)


def generates_by_steps() -> bool:
    """Return True if the model generates step by step."""
    return _engine.stepper is not None


def read_engine_note() -> str:
    return _engine.note


def measure_memory() -> int:
    return _bytes


def measure_step_s(size: int, length: int, budget_s: float) -> float | None:
    """Return the seconds of a step that brings a token to each of `size` rows, or None if they do not fit in memory.

    The prompts of the rows have `length` tokens, and have been read before.
    """
    stepper = cast("Stepper", _engine.stepper)
    value = _items(1, length)[0]
    try:
        for key in range(size):
            _join(stepper, key, value)
        unread = set(range(size))
        while unread and len(stepper):
            unread -= {update.key for update in _step(stepper)}
        tokens, runs, started = 0, 0, time.perf_counter()
        while runs < MIN_RUNS or time.perf_counter() - started < budget_s:
            runs += 1
            for update in _step(stepper):
                tokens += update.tokens
                if update.answer is not OPEN:  # the row has ended, and another one takes its place
                    _join(stepper, update.key, value)
        return size * (time.perf_counter() - started) / max(1, tokens)
    except OutOfMemory:
        return None
    finally:
        for key in range(size):
            stepper.leave(key)


def measure_generation_rate(size: int, length: int, budget_s: float) -> float:
    took_s = measure_step_s(size, length, budget_s)
    return size / took_s if took_s else 0.0


def measure_items_per_s(size: int, length: int, budget_s: float) -> float:
    """Return the items per second in batches of `size`, or 0.0 if they do not fit in memory."""
    items, done = _items(size, length), 0
    try:
        _run(items)
        started = time.perf_counter()
        while time.perf_counter() - started < budget_s:
            _run(items)
            done += size
    except OutOfMemory:
        return 0.0
    return done / (time.perf_counter() - started)


def answer_inputs(lengths: Sequence[int]) -> list[Any]:
    """Return the answers to the user's own inputs, each alone, or to inputs that are made up."""
    inputs = _setup.own_inputs[:MOST_COMPARED] or samples.make_compared_texts(_setup.spec, _engine, lengths)
    return [_run([value])[0] for value in inputs]


def _items(size: int, length: Length) -> list[Any]:
    lengths = (length,) if isinstance(length, int) else length
    found = [samples.make_sample(_setup.spec, _engine, length, _setup.own_inputs) for length in lengths]
    return [found[place % len(found)] for place in range(size)]


def _join(stepper: Stepper, key: Hashable, value: Any) -> None:
    parameters = {**tasks.find_task(_setup.spec.task).measured_with, "max_new_tokens": ANSWER}
    stepper.join(key, value, parameters, seed=0)


def _step(stepper: Stepper) -> list[Progress]:
    """Take a step and return its progress. Raises the error of a row that failed."""
    progress = stepper.step()
    for update in progress:
        if isinstance(update.answer, Exception):
            raise update.answer
    return progress


def _run(items: list[Any]) -> list[Any]:
    """Return the answers. Raises the first error among them, and `OutOfMemory` also if only halves fitted."""
    report = engine_calls.run_engine_with_isolation(
        _engine, items, dict(tasks.find_task(_setup.spec.task).measured_with)
    )
    if report.oom_shape:
        raise OutOfMemory(f"{len(items)} items do not fit.")
    for outcome in report.outcomes:
        if isinstance(outcome, InferenceError):
            raise outcome
    return report.outcomes
