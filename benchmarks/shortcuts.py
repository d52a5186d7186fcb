"""Measures the gain of each shortcut of `inference.engines.accelerate`, some of which docs/guide/models.md shows.

.venv/bin/python -m benchmarks.shortcuts [--rounds 5]

Of each model, the engine with all its shortcuts and the engine without one of them answer the same batches in turn, in
one thread. A gain is the CPU time a text that is saved, of medians over the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from unittest import mock

import django
import torch
from tqdm import tqdm

from benchmarks import workloads
from benchmarks.workloads import WORKLOADS
from inference.catalog.specs import ModelSpec
from inference.engines.accelerate import fast_tokenizer
from inference.engines.accelerate.installation import Shortcuts
from inference.engines.base import Engine
from inference.engines.embeddings import SentenceEmbeddings
from inference.engines.pipeline.engine import PipelineEngine

SIZES = (1, 8, 32)  # texts a batch, in the order in which they came
ROUND_S = 0.5  # of CPU time, at least a batch
CORE = "tokens by the tokenizer's core"  # a part of "texts at once"
NAMES = ("packed weights", "no padding", "first tokens only", "masks only", "texts at once", CORE)


@dataclass(frozen=True)
class Case:
    title: str
    engine: type[Engine]
    spec: ModelSpec
    texts: Sequence[str]


def cases() -> list[Case]:
    workloads.prepare(WORKLOADS.values())
    of_workloads = [
        Case(
            workload.title,
            PipelineEngine,
            ModelSpec(name=workload.name, task=workload.task, model=str(workload.model_folder), dtype="float32"),
            workload.texts(),
        )
        for workload in WORKLOADS.values()
    ]
    folder = str(workloads.weights_folder())
    spec = ModelSpec(name="embeddings", task="feature-extraction", model=folder, max_length=256)
    return [
        *of_workloads,
        Case("MiniLM, sentence embeddings, mixed lengths", SentenceEmbeddings, spec, WORKLOADS["mixed"].texts()),
        Case("MiniLM, feature extraction, mixed lengths", PipelineEngine, spec, WORKLOADS["mixed"].texts()),
    ]


def load(case: Case, without: str | None) -> tuple[Engine, set[str]]:
    """The engine, and the names of its shortcuts that are on."""
    add, installed = Shortcuts.add_if_equal, set()

    def some(self: Shortcuts, name: str, *arguments: object) -> object:
        shortcut = None if name == without else add(self, name, *arguments)  # type: ignore[arg-type]
        if shortcut is not None:
            installed.add(name)
        return shortcut

    engine = case.engine(case.spec)
    with mock.patch.object(Shortcuts, "add_if_equal", some):
        if without == CORE:
            with mock.patch.object(fast_tokenizer, "make_encoder", return_value=None):
                engine.load("cpu")
        else:
            engine.load("cpu")
    engine.warm_up()
    if "texts at once" in installed:
        installed.add(CORE)
    return engine, installed


def cpu_s(engine: Engine, batches: Sequence[Sequence[str]]) -> float:
    """A text."""
    texts, begun_s = 0, time.process_time()
    while not texts or time.process_time() - begun_s < ROUND_S:
        for batch in batches:
            answers = engine.predict(list(batch), {})
            assert not any(isinstance(answer, BaseException) for answer in answers), answers
            texts += len(batch)
    return (time.process_time() - begun_s) / texts


def gain(case: Case, whole: Engine, less: Engine, size: int, rounds: int) -> float:
    texts = case.texts[:64]
    batches = [texts[start : start + size] for start in range(0, len(texts), size)]
    times: dict[Engine, list[float]] = {whole: [], less: []}
    for number in range(rounds):
        for engine in (whole, less) if number % 2 else (less, whole):
            times[engine].append(cpu_s(engine, batches))
    return 1 - statistics.median(times[whole]) / statistics.median(times[less])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    torch.set_num_threads(1)
    lines = [f"| model | batch | {' | '.join(NAMES)} |", "|---|--:|" + "--:|" * len(NAMES)]
    measured = cases()
    for case in tqdm(measured, unit="model", dynamic_ncols=True):
        whole, installed = load(case, without=None)
        less = {name: load(case, without=name)[0] for name in NAMES if name in installed}
        for size in SIZES:
            gains = {name: f"{gain(case, whole, engine, size, rounds):.0%}" for name, engine in less.items()}
            lines.append(f"| {case.title} | {size} | {' | '.join(gains.get(name, '-') for name in NAMES)} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
