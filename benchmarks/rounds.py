"""Runs a plan: the pipeline alone, each peer's best use of the cores, then the rounds."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from tqdm import tqdm

from benchmarks import offline, processes, service, tables, workloads
from benchmarks.load import Target, closed_loop, poisson
from benchmarks.results import Load, Measurement, Results
from benchmarks.samples import Sample
from benchmarks.systems import SYSTEMS, Serving, Variant, serving
from benchmarks.workloads import WORKLOADS, Workload

TRIAL_CLIENTS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    rounds: int
    seconds: float  # of one window
    workloads: tuple[str, ...]
    systems: tuple[str, ...]
    loads: tuple[Load, ...]
    variants: tuple[Variant, ...]  # of which each peer takes its best
    offline_sizes: tuple[int, ...]  # batches of the pipeline alone

    @property
    def steps(self) -> int:
        measured = self.rounds * len(self.systems) * len(self.loads)
        return len(self.workloads) * (1 + self.trials + measured)

    @property
    def trials(self) -> int:
        peers = sum(not SYSTEMS[name].is_ours for name in self.systems)
        return peers * len(self.variants) if len(self.variants) > 1 else 0


class Bench:
    """Runs a plan. Rounds alternate between the systems; what cannot start is reported and left out."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.results = Results(machine=tables.machine(), seconds=plan.seconds, rounds=plan.rounds)
        self.chosen: dict[tuple[str, str], Variant] = {}
        self.capacity: dict[tuple[str, str], float] = {}
        self.bar = tqdm(total=plan.steps, unit="run", smoothing=0.1, dynamic_ncols=True)

    def run(self) -> Results:
        with self.bar:
            for name in self.plan.workloads:
                self.ceiling(WORKLOADS[name])
                for system in self.plan.systems:
                    self.choose(system, WORKLOADS[name])
            for number in range(self.plan.rounds):
                for name in self.plan.workloads:
                    for system in rotated(self.plan.systems, number):
                        self.measure_all(system, WORKLOADS[name], number)
        return self.results

    def step(self, text: str) -> None:
        self.bar.set_description_str(text)

    def ceiling(self, workload: Workload) -> None:
        for variant in self.plan.variants:
            self.step(f"{workload.name}: the pipeline alone, {variant}")
            measured = offline.measure(workload, variant, self.plan.seconds / 3, self.plan.offline_sizes)
            self.results.offline.setdefault(workload.name, []).append(measured)
        self.bar.update()

    def choose(self, system: str, workload: Workload) -> None:
        """Its best workers x threads, by a trial; this service chooses for itself."""
        self.chosen[system, workload.name] = self.plan.variants[0]
        if len(self.plan.variants) == 1 or SYSTEMS[system].is_ours:
            return
        rates = {variant: self.trial(system, workload, variant) for variant in self.plan.variants}
        self.chosen[system, workload.name] = max(rates, key=rates.__getitem__)

    def trial(self, system: str, workload: Workload, variant: Variant) -> float:
        self.step(f"{workload.name}: trial of {system}, {variant}")
        rate = 0.0
        try:
            with serving(system, workload, variant) as served:
                rate = closed_loop(served.target, clients=TRIAL_CLIENTS, seconds=self.plan.seconds / 2, first=0).rate
        except processes.StartFailed as error:
            self.results.failures.append(f"{system}, {workload.name}, {variant}: {error}")
        self.bar.update()
        return rate

    def measure_all(self, system: str, workload: Workload, number: int) -> None:
        variant = self.chosen[system, workload.name]
        done = 0
        try:
            with serving(system, workload, variant) as served:
                for load in self.plan.loads:
                    self.step(f"{workload.name}: {system}, {load}, round {number + 1} of {self.plan.rounds}")
                    self.measure(system, workload, variant, load, number, served)
                    self.bar.update()
                    done += 1
        except processes.StartFailed as error:
            self.results.failures.append(f"{system}, {workload.name}: {error}")
            self.bar.update(len(self.plan.loads) - done)

    def measure(
        self, system: str, workload: Workload, variant: Variant, load: Load, number: int, served: Serving
    ) -> None:
        since = datetime.datetime.now(datetime.UTC)
        sample = self.sample(system, workload, load, served.target, first=number * workloads.BLOCK)
        if load.clients == TRIAL_CLIENTS:
            self.capacity[system, workload.name] = sample.rate
        self.results.measurements.append(
            Measurement(
                workload=workload.name,
                system=system,
                load=str(load),
                round=number,
                variant=str(variant),
                sample=sample,
                resident_mib=processes.resident_bytes() / 2**20,
                mean_batch=service.mean_batch(served.data, since) if served.data else None,
            )
        )

    def sample(self, system: str, workload: Workload, load: Load, target: Target, first: int) -> Sample:
        if load.clients:
            return closed_loop(target, clients=load.clients, seconds=self.plan.seconds, first=first)
        rate = load.share * self.capacity[system, workload.name]
        return poisson(target, rate=rate, seconds=self.plan.seconds, first=first)


def rotated(names: Sequence[str], by: int) -> list[str]:
    by %= len(names)
    return [*names[by:], *names[:by]]
