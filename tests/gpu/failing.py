"""Cases 7, 8 and 10: memory that is short, a device that fails, a kernel that does not end."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

from inference.catalog.specs import ModelSpec
from inference.engines.artifacts.memory import free_unused_memory as free_memory
from inference.engines.base import Engine
from inference.engines.runtime import exception_diagnosis
from inference.engines.runtime.engine_calls import run_engine_with_isolation
from inference.errors import DeviceFailed, InferenceError
from tests import cuda
from tests.conditions import PATIENCE_S, wait_for
from tests.gpu.answers import MINILM
from tests.gpu.endless import LEFT, compute_endlessly, hold
from tests.gpu.machine import Failed, Machine, StandIn, engine, expect

KEPT = 64 << 20  # bytes that a process may have more once what failed is over: workspaces of libraries
BACK_S = 30.0  # until a process that lost its device is replaced
FREED_S = 5.0  # until the memory of one that ran past its limit is free


class Small(Engine):
    """In the place of a model on a stand-in whose memory takes eight items a call."""

    def __init__(self, machine: StandIn) -> None:
        super().__init__(ModelSpec(name="m"))
        self.machine = machine

    def load(self, device: str) -> None:
        """Nothing to do."""

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        self.machine.held += len(inputs)
        if self.machine.held > 8:
            if not self.machine.broken:
                self.machine.held = 0
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        self.machine.held = 0
        return list(inputs)


def memory(machine: Machine) -> str:
    with contextlib.nullcontext() if isinstance(machine, StandIn) else holder():
        made = Small(machine) if isinstance(machine, StandIn) else engine(machine, **MINILM, max_batch_size=1024)
        free_memory()
        before = machine.reserved()
        report = run_engine_with_isolation(made, [" ".join(["day"] * 200)] * (9 if machine.is_stand_in else 1024), {})
        free_memory()
        after = machine.reserved()
    failed = sum(isinstance(outcome, InferenceError) for outcome in report.outcomes)
    expect(not failed, f"{failed} of {len(report.outcomes)} items fail that fit alone")
    expect(report.calls > 1, "nothing was short: the case has shown nothing")
    expect(after <= before + KEPT, f"{after - before} bytes are not given back")
    return f"{len(report.outcomes)} items in {report.calls} calls beside a process that holds the rest"


@contextlib.contextmanager
def holder() -> Iterator[None]:
    """Another process has all but `LEFT` of the memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
        other.submit(hold, all_but=LEFT).result()
        yield


def device_assert(machine: Machine) -> str:
    if machine.is_stand_in:
        for where in ("predict", "output"):
            code = _broken_here(where, believed=machine.broken)
            expect(code == DeviceFailed.code, f"a device that fails in {where} is {code}")
        return "in a call and in its output: device_failed (stand-in)"
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn) as neighbour:
        for where in ("predict", "output"):
            with ProcessPoolExecutor(1, spawn) as process:
                code = process.submit(_poison, where, believed=machine.broken).result()
            expect(code == DeviceFailed.code, f"a device-side assert in {where} is {code}")
            expect(neighbour.submit(_computes).result() == "", "a neighbour on the same device fails")
            started = time.monotonic()  # on a GPU only
            with ProcessPoolExecutor(1, spawn) as process:
                expect(process.submit(_computes).result() == "", "a fresh process cannot use the device")
            expect(time.monotonic() - started < BACK_S, f"it is back later than {BACK_S:g} s")
    return "in a call and in its output: device_failed, the neighbour computes, and so does the next process"


class _Function(Engine):
    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(ModelSpec(name="m"))
        self.function = function

    def load(self, device: str) -> None:
        """Nothing to do."""

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        return [self.function() for _ in inputs]


def _outcome(function: Callable[[], Any], *, believed: bool) -> str:
    """Its code, or "answered". With `believed`, what a device is asked is not looked at."""
    deaf = patch.object(exception_diagnosis, "probe_gpus", return_value=None)
    with deaf if believed else contextlib.nullcontext():
        try:
            (outcome,) = run_engine_with_isolation(_Function(function), ["x"], {}).outcomes
        except DeviceFailed as error:
            return error.code
    return outcome.code if isinstance(outcome, InferenceError) else "answered"


def _broken_here(where: str, *, believed: bool) -> str:
    with cuda.gpus() as found:

        def breaks() -> Any:
            found.broken = RuntimeError("CUDA error: device-side assert triggered")
            raise RuntimeError("Triton Error [CUDA]: unspecified")

        answer = type("Answer", (), {"tolist": lambda self: breaks()})
        return _outcome(breaks if where == "predict" else answer, believed=believed)


def _poison(where: str, *, believed: bool) -> str:
    import torch

    def asserts() -> Any:
        found = torch.zeros(4, device="cuda:0")[torch.tensor([10_000_000], device="cuda:0")]
        return found.tolist() if where == "predict" else found

    return _outcome(asserts, believed=believed)


def _computes() -> str:
    import torch

    try:
        torch.ones(2, device="cuda:0").sum().item()
    except RuntimeError as error:
        return str(error)
    return ""


def past_its_limit(machine: Machine) -> str:
    with tempfile.TemporaryDirectory() as folder:
        began, lock = Path(folder, "began"), Path(folder, "lock")
        before = machine.free()
        limit_s = 3600.0 if machine.broken else 0.5
        process = multiprocessing.get_context("spawn").Process(
            target=compute_endlessly, args=(machine.is_stand_in, str(began), str(lock), limit_s), daemon=True
        )
        process.start()
        try:
            _until(began.exists, PATIENCE_S, "the kernel has not begun")
            started = time.monotonic()  # a figure of the table
            freed_s = machine.patience_s(FREED_S + 0.5)
            _until(lambda: _is_free(machine, lock, before), freed_s, f"its memory is not free after {FREED_S:g} s")
            return f"free {time.monotonic() - started:.1f} s after a kernel began that may run for 0.5 s"
        finally:
            process.kill()
            process.join()


def _is_free(machine: Machine, lock: Path, before: int) -> bool:
    if not machine.is_stand_in:
        return machine.free() >= before - LEFT // 2
    with lock.open("w") as mine:
        try:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _until(holds: Callable[[], bool], limit_s: float, problem: str) -> None:
    if not wait_for(holds, limit_s=limit_s):
        raise Failed(problem)
