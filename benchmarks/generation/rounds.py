"""Runs the rounds, which alternate between the systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from benchmarks import processes
from benchmarks.generation.dataset import Example
from benchmarks.generation.load import Window, closed_loop
from benchmarks.generation.systems import SYSTEMS, serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """One system with so many clients in one round."""

    system: str
    clients: int
    round: int
    variant: str  # workers x threads
    window: Window
    resident_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    systems: tuple[str, ...]
    clients: tuple[int, ...]
    rounds: int
    seconds: float  # of a window

    @property
    def steps(self) -> int:
        return self.rounds * sum(len(self.loads(system)) for system in self.systems)

    def loads(self, system: str) -> list[int]:
        return [clients for clients in self.clients if clients <= SYSTEMS[system].most_clients]


def run(plan: Plan, pool: Sequence[Example], bar: tqdm[Any], failures: list[str]) -> list[Generated]:
    """What cannot start is told in `failures` and left out."""
    found: list[Generated] = []
    for number in range(plan.rounds):
        turn = number % len(plan.systems)
        for system in plan.systems[turn:] + plan.systems[:turn]:
            try:
                found += one_round(plan, system, number, pool, bar)
            except processes.StartFailed as error:
                failures.append(f"{system}, generation: {error}")
    return found


def one_round(plan: Plan, system: str, number: int, pool: Sequence[Example], bar: tqdm[Any]) -> list[Generated]:
    found: list[Generated] = []
    with serving(system, pool) as target:
        for clients in plan.loads(system):
            bar.set_description_str(f"generation: {system}, {clients} clients, round {number + 1} of {plan.rounds}")
            first = number * len(pool) // plan.rounds
            window = closed_loop(target, pool, clients=clients, seconds=plan.seconds, first=first)
            found.append(
                Generated(
                    system=system,
                    clients=clients,
                    round=number,
                    variant=str(SYSTEMS[system].variant),
                    window=window,
                    resident_mib=processes.resident_bytes() / 2**20,
                )
            )
            bar.update()
    return found
