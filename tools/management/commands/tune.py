"""The command `manage.py tune MODEL`, which measures a model and says what to write in models.toml."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from inference.catalog import lookup
from inference.catalog.specs import ModelSpec
from inference.management.command_errors import show_errors_as_sentences
from inference.worker.replicas import devices
from inference.worker.replicas.gpus import Device
from tools.tuning import measurements, processor, report
from tools.tuning.measurements import Grid, Measurement, Unit, Variant
from tools.tuning.replica import CannotMeasure, Replica, Setup


class ProgressLine:
    """A bar on stderr, drawn in place on a terminal and left out elsewhere."""

    WIDTH = 30

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0

    def __call__(self, label: str) -> None:
        filled = min(self.WIDTH, self.WIDTH * self.done // self.total)  # more may be tried than was known at first
        self.done += 1
        self._draw(f"[{'#' * filled}{'.' * (self.WIDTH - filled)}] {label}")

    def clear(self) -> None:
        self._draw("")

    def _draw(self, line: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


class Command(BaseCommand):
    help = "Measure a model over batches, backends and replicas on this machine, and print the lines for models.toml."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", help="its name in models.toml")
        parser.add_argument("--device", default="auto", help="cpu or cuda:0; auto (default) takes the first there is")
        parser.add_argument("--inputs", type=Path, help="a file of inputs of your own, a JSON value a line")
        parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement (default 0.5)")

    def handle(self, *args: Any, model: str, device: str, inputs: Path | None, seconds: float, **options: Any) -> None:
        with show_errors_as_sentences():
            spec = lookup.get_spec(model)
        own = _device(device)
        spec = spec if own.name == devices.CPU else spec.with_gpu_limits()
        self.others = list(processor.warn_of_other_load(devices.count_cores()))  # looked up before anything is measured
        setup = measurements.enlarge_cache(Setup(spec=spec, device=own, threads=1, own_inputs=_own(inputs)))
        try:
            self.tune(setup, seconds)
        except CannotMeasure as error:
            raise CommandError(str(error)) from error

    def tune(self, setup: Setup, seconds: float) -> None:
        cores = devices.count_cores()
        sizes = measurements.choose_sizes(setup.spec)
        all_lengths = measurements.choose_lengths(setup.spec, setup.own_inputs)
        arrangements, choices = measurements.list_arrangements(setup, cores), measurements.list_variants(setup)
        step = ProgressLine(1 + len(sizes) * len(all_lengths) + len(choices) * len(arrangements))
        step("loading the model")
        with Replica(setup) as replica:
            replica.wait_until_loaded()
            unit = measurements.find_unit(replica)
            on_gpu = not setup.is_on_cpu
            grid = measurements.measure_grid(replica, unit, sizes, all_lengths, seconds, step, on_gpu=on_gpu)
        size = report.find_knee(grid, measurements.find_typical_length(setup))
        together = {cores, max(cores, size)} if unit is measurements.TOKENS else {1, size}
        trials: dict[Variant, Measurement] = {}
        expected: Sequence[Any] | None = None
        for choice in choices:
            trials[choice], expected_now = measurements.measure_variant(
                setup, unit, choice, expected, arrangements, sorted(together), 4 * seconds, step
            )
            expected = expected or expected_now
        step.clear()
        self.print_results(setup.spec, unit, grid, trials)

    def print_results(self, spec: ModelSpec, unit: Unit, grid: Grid, trials: dict[Variant, Measurement]) -> None:
        generates = unit is measurements.TOKENS
        limits = report.make_generating_lines(spec, grid) if generates else report.make_catalog_lines(spec, grid)
        arrangement = report.choose_trial(trials)[1]
        parts = {
            "This machine": [processor.describe_processor(), *self.others],
            f"{spec.name} as it is, one replica of one thread": report.format_table(grid, unit.name),
            **({"A step of so many rows, a token each": report.format_steps(grid)} if generates else {}),
            "What batching gains": report.format_plot(grid),
            "Backends, precisions, replicas and threads": report.format_trials_table(trials, unit.name),
            f"The best of each, by the mean of its {unit.name}/s": report.format_trials_plot(trials),
            "The worker": [f"celery -A project worker -c {arrangement.replicas}"],
            f"For {settings.MODELS_FILE.name}": [*limits, *report.make_choice_lines(spec, trials)],
        }
        for title, part in parts.items():
            self.stdout.write(self.style.MIGRATE_HEADING(f"\n{title}"))
            for line in part:
                self.stdout.write(line)


def _device(option: str) -> Device:
    try:
        return devices.choose_devices(option).devices[0]
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
