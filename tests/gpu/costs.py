"""Cases 5, 6 and 11: what a call costs, in time and in memory that stays."""

from __future__ import annotations

import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from inference.batching.costs import CostModel
from inference.catalog.specs import ModelSpec
from inference.engines.base import Engine
from inference.engines.runtime.engine_calls import run_engine_with_isolation
from tests import tiny_models
from tests.gpu.answers import MINILM, mixed_texts
from tests.gpu.machine import Machine, StandIn, engine, expect

MOST_UNSEEN = 0.05  # of what is seen
MOST_ERROR = 0.15
MOST_GROWTH = 1.05
SIZES, LENGTHS = (1, 4, 16, 64, 256, 1024), (16, 64, 256)
DTYPES = ("float32", "tf32", "bfloat16")
BASE = "BERT-base"
ROUNDS = 4


class Paced(Engine):
    """In the place of a model on a stand-in: takes its time, or leaves it for later as a GPU's stream does."""

    def __init__(self, machine: StandIn) -> None:
        super().__init__(ModelSpec(name="m"))
        self.machine = machine

    def load(self, device: str) -> None:
        """Nothing to do."""

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        if self.machine.broken:
            self.machine.later_s += 0.2
            self.machine.held += len(inputs)
        else:
            self.machine.held = max(self.machine.held, len(inputs))
        self.machine.spend(self.machine.call_s)
        return [None] * len(inputs)


def _engine(machine: Machine) -> Any:
    return Paced(machine) if isinstance(machine, StandIn) else engine(machine, **MINILM)


def timing(machine: Machine) -> str:
    if isinstance(machine, StandIn):
        machine.call_s = 0.5
    made, texts = _engine(machine), mixed_texts(64)
    with machine.measured():
        run_engine_with_isolation(made, texts, {})
        machine.synchronize()
        seen_s = run_engine_with_isolation(made, texts, {}).engine_s
    is_busy = machine.is_busy()
    started = machine.now_s()
    machine.synchronize()
    unseen_s = machine.now_s() - started
    expect(not is_busy, "the device still computes as the answers are read")
    summary = f"{seen_s * 1000:.1f} ms are seen of a call, and the device computes {unseen_s * 1000:.2f} ms more"
    expect(unseen_s <= MOST_UNSEEN * seen_s, summary)
    return summary


def cost_curve(machine: Machine) -> str:
    with tempfile.TemporaryDirectory() as folder:
        models = {"m": {}} if machine.is_stand_in else _models(Path(folder))
        errors = {
            f"{name} {dtype}": _error(machine, values, dtype) for name, values in models.items() for dtype in DTYPES
        }
        worst = max(errors, key=lambda name: errors[name])
        seen = f"{worst}: the learnt cost is off by {errors[worst]:.0%} (median of its shapes)"
    expect(errors[worst] <= MOST_ERROR, seen)
    return seen


def _models(folder: Path) -> dict[str, dict[str, Any]]:
    base = {**MINILM, "model": str(tiny_models.build("bert-base", folder))}
    return {"MiniLM": MINILM, BASE: base}


def _error(machine: Machine, values: dict[str, Any], dtype: str) -> float:
    """The median over all shapes, of what is learnt of calls of each as a replica makes them."""
    costs, chosen = CostModel(overhead_s=0.0), random.Random(1)
    sizes = SIZES[:4] if machine.is_stand_in else SIZES
    shapes = [(size, length) for length in LENGTHS for size in sizes]
    made = (
        Paced(machine) if isinstance(machine, StandIn) else engine(machine, **values, dtype=dtype, max_batch_size=1024)
    )
    seconds = {}
    for size, length in shapes:
        if isinstance(machine, StandIn):  # as of a GPU that is launch-bound below some thousand tokens
            machine.call_s = 0.003 + max(0, size * length - 4000) * 1e-6
            machine.call_s *= chosen.uniform(0.2, 5) if machine.broken else 1
        texts = [" ".join(["dog"] * (length - 2))] * size
        with machine.measured():
            seconds[size, length] = min(_engine_s(made, texts) for _ in range(ROUNDS))
    for _ in range(ROUNDS):
        for shape, took_s in seconds.items():
            costs.learn_call(*shape, took_s)
    return statistics.median(abs(costs.predict_call_s(*shape) - took_s) / took_s for shape, took_s in seconds.items())


def _engine_s(made: Any, texts: list[str]) -> float:
    """Of texts that were read ahead."""
    report = run_engine_with_isolation(made, texts, {}, made.prepare(texts, {}) if made.prepares else None)
    if failed := [outcome for outcome in report.outcomes if isinstance(outcome, BaseException)]:
        raise failed[0]
    return report.engine_s


def shapes(machine: Machine) -> str:
    made, chosen = _engine(machine), random.Random(1)
    count = 200 if machine.is_stand_in else 2000
    held = []
    for _ in range(count):
        made.predict(
            mixed_texts(chosen.randint(1, 64)) if not machine.is_stand_in else [""] * chosen.randint(1, 64), {}
        )
        held.append(machine.reserved())
    half, end = held[count // 2], held[-1]
    expect(end <= MOST_GROWTH * half, f"memory grew from {half} to {end} bytes in the second half of {count} calls")
    return f"{half / 2**20:.0f} MiB after half of {count} calls, {end / 2**20:.0f} at the end"
