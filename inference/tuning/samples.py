"""Inputs to measure with: of a task and a length, or taken from the user's own."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Sequence
from typing import Any

from inference.catalog import lengths
from inference.catalog.specs import ModelSpec

WORDS = "the people of this small town went to see what had been found near the old river that day and".split()  # noqa: SIM905
SOUND_RATE = 16_000
PARAMETERS: dict[str, dict[str, Any]] = {
    "zero-shot-classification": {"candidate_labels": ["politics", "sports"]},
    "zero-shot-image-classification": {"candidate_labels": ["a town", "a river"]},
    "zero-shot-audio-classification": {"candidate_labels": ["speech", "music"]},
    "text-generation": {"max_new_tokens": 16, "do_sample": False},
}


def parameters(spec: ModelSpec) -> dict[str, Any]:
    return PARAMETERS.get(spec.task, {})


def sample(spec: ModelSpec, engine: Any, length: int, own: Sequence[Any]) -> Any:
    """An input of about `length` tokens: the nearest of the user's own, or one that is made up for the task."""
    if own:
        return min(own, key=lambda value: abs(lengths.measure(spec, value)[1] - length))
    if spec.task in lengths.IMAGE_TASKS:
        return _image()
    if spec.task in lengths.AUDIO_TASKS:
        return _sound(length / lengths.FRAMES_PER_S)
    text = " ".join(WORDS[place % len(WORDS)] for place in range(max(1, length - 2)))
    if spec.task == "fill-mask":
        return f"{engine.pipe.tokenizer.mask_token} {text}"
    if spec.engine.endswith(":SentenceSimilarity"):
        return {"source_sentence": text, "sentences": [text]}
    return text


def _image() -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.effect_noise((480, 360), 60).convert("RGB").save(buffer, format="JPEG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _sound(seconds: float) -> str:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 2, SOUND_RATE, 0, "NONE", ""))
        file.writeframes(bytes(2 * int(SOUND_RATE * seconds)))
    return base64.b64encode(buffer.getvalue()).decode("ascii")
