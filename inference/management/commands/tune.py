"""`manage.py tune MODEL`: measures a model on this machine and says what to write in models.toml."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from inference.catalog import lookup
from inference.catalog.specs import ModelSpec
from inference.management.told import told
from inference.tuning import measure, report
from inference.tuning.measure import Arrangement, Grid, Precision, Unit
from inference.tuning.replica import CannotMeasure, Replica, Setup
from inference.worker import devices


class Progress:
    """A bar on stderr, drawn in place on a terminal and left out elsewhere."""

    WIDTH = 30

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0

    def __call__(self, label: str) -> None:
        filled = self.WIDTH * self.done // self.total
        self.done += 1
        self._draw(f"[{'#' * filled}{'.' * (self.WIDTH - filled)}] {label}")

    def clear(self) -> None:
        self._draw("")

    def _draw(self, line: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


class Command(BaseCommand):
    help = "Measure a model over batch sizes and lengths, on this machine, and print the lines for models.toml."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", help="its name in models.toml")
        parser.add_argument("--device", default="auto", help="cpu or cuda:0; auto (default) takes the first there is")
        parser.add_argument("--inputs", type=Path, help="a file of inputs of your own, a JSON value a line")
        parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement (default 0.5)")

    def handle(self, *args: Any, model: str, device: str, inputs: Path | None, seconds: float, **options: Any) -> None:
        with told():
            spec = lookup.spec_of(model)
        setup = measure.roomy(Setup(spec=spec, device=_device(device), threads=1, own_inputs=_own(inputs)))
        try:
            self.tune(setup, seconds)
        except CannotMeasure as error:
            raise CommandError(str(error)) from error

    def tune(self, setup: Setup, seconds: float) -> None:
        sizes, all_lengths = measure.sizes_for(setup.spec), measure.lengths_for(setup.spec, setup.own_inputs)
        arrangements = measure.arrangements(setup.device, devices.cores())
        step = Progress(2 + len(sizes) * len(all_lengths) + len(arrangements))
        step("loading the model")
        with Replica(setup) as replica:
            replica.wait_until_loaded()
            unit = measure.unit_of(replica)
            grid = measure.grid(replica, unit, sizes, all_lengths, seconds, step)
            size = report.knee(grid, measure.typical_length(setup))
            dtype = "float32" if setup.spec.dtype == "bfloat16" else "bfloat16"
            step(dtype)
            precision = measure.precision(setup, unit, replica, dtype, size, seconds)
        rates: dict[Arrangement, dict[int, float]] = {}
        together = [devices.cores(), max(devices.cores(), size)] if unit is measure.TOKENS else [1, size]
        for arrangement in arrangements:
            step(f"{arrangement.replicas} replicas of {arrangement.threads} threads")
            rates[arrangement] = measure.throughput(setup, unit, arrangement, sorted({*together}), 4 * seconds)
        step.clear()
        self.show(setup.spec, unit, grid, precision, rates)

    def show(
        self, spec: ModelSpec, unit: Unit, grid: Grid, precision: Precision, rates: dict[Arrangement, dict[int, float]]
    ) -> None:
        generates = unit is measure.TOKENS
        lines = report.generating_lines(spec, grid) if generates else report.catalog_lines(spec, grid)
        parts = {
            f"{spec.name} on this machine, one replica of one thread": report.table(grid, unit.name),
            **({"A step of so many rows, a token each": report.steps(grid)} if generates else {}),
            "What batching gains": report.plot(grid),
            "Replicas and threads": report.arrangement_lines(rates),
            "Precision": report.precision_lines(precision),
            f"For {settings.MODELS_FILE.name}": lines,
        }
        for title, part in parts.items():
            self.stdout.write(self.style.MIGRATE_HEADING(f"\n{title}"))
            for line in part:
                self.stdout.write(line)


def _device(option: str) -> str:
    try:
        return devices.parse(option)[0]
    except ValueError as error:
        raise CommandError(str(error)) from error


def _own(file: Path | None) -> list[Any]:
    if file is None:
        return []
    try:
        values = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise CommandError(f'{file}: {error}. It must have a JSON value on every line, such as "a text".') from error
    if not values:
        raise CommandError(f"{file} is empty: put an input on every line, as JSON.")
    return values
