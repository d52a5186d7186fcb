"""Cases 5, 6 and 11: what a call costs, in time and in memory that stays."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from inference.batching.costs import CostModel
from inference.catalog.specs import ModelSpec
from inference.engines.base import Engine
from inference.engines.isolate import run
from tests.gpu.answers import MINILM, mixed_texts
from tests.gpu.machine import Machine, StandIn, engine, expect

LEAST_SEEN = 0.95
MOST_ERROR = 0.15
MOST_GROWTH = 1.05
SIZES, LENGTHS = (1, 4, 16, 64, 256, 1024), (16, 64, 256)
ROUNDS = 3


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
            time.sleep(self.machine.call_s)
            self.machine.held = max(self.machine.held, len(inputs))
        return [None] * len(inputs)


def _engine(machine: Machine) -> Any:
    return Paced(machine) if isinstance(machine, StandIn) else engine(machine, **MINILM)


def timing(machine: Machine) -> str:
    if isinstance(machine, StandIn):
        machine.call_s = 0.5
    made, texts = _engine(machine), mixed_texts(64)
    run(made, texts, {})
    machine.synchronize()
    started = time.perf_counter()
    seen_s = run(made, texts, {}).engine_s
    is_busy = machine.is_busy()
    machine.synchronize()
    took_s = time.perf_counter() - started
    expect(not is_busy, "the device still computes as the answers are read")
    expect(seen_s >= LEAST_SEEN * took_s, f"{seen_s * 1000:.1f} ms are seen of {took_s * 1000:.1f}")
    return f"{seen_s * 1000:.1f} ms seen of {took_s * 1000:.1f}"


def cost_curve(machine: Machine) -> str:
    costs, chosen = CostModel(overhead_s=0.0), random.Random(1)
    seconds = _by_formula(machine, chosen) if isinstance(machine, StandIn) else _measured(machine)
    for _ in range(ROUNDS):
        for (size, length), took_s in seconds.items():
            costs.observe(size, length, took_s)
    errors = [abs(costs.seconds(*shape) - took_s) / took_s for shape, took_s in seconds.items()]
    median = statistics.median(errors)
    expect(median <= MOST_ERROR, f"the learnt cost is off by {median:.0%} (median of {len(errors)} shapes)")
    return f"off by {median:.0%} (median of {len(errors)} shapes)"


def _by_formula(machine: Machine, chosen: random.Random) -> dict[tuple[int, int], float]:
    """As of a GPU that is launch-bound below some thousand tokens."""
    return {
        (size, length): (0.003 + max(0, size * length - 4000) * 1e-6)
        * (chosen.uniform(0.2, 5) if machine.broken else 1)
        for size in SIZES
        for length in LENGTHS
    }


def _measured(machine: Machine) -> dict[tuple[int, int], float]:
    made = engine(machine, **MINILM, max_batch_size=1024)
    found = {}
    for length in LENGTHS:
        for size in SIZES:
            texts = [" ".join(["day"] * (length - 2))] * size
            took = []
            for _ in range(ROUNDS + 1):
                started = time.perf_counter()
                made.embed(texts)
                took.append(time.perf_counter() - started)
            found[size, length] = min(took)
    return found


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
