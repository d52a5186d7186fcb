"""Inputs to measure with: of a task and a length, or taken from the user's own."""

import base64
import io
from collections.abc import Sequence
from typing import Any

from inference.catalog import lengths, tasks, units
from inference.catalog.specs import ModelSpec
from inference.engines import media
from inference.engines.base import Engine

WORDS = "the people of this small town went to see what had been found near the old river that day and".split()  # noqa: SIM905


def sample(spec: ModelSpec, engine: Engine, length: int, own: Sequence[Any]) -> Any:
    """An input of about `length` tokens: the nearest of the user's own, or one that is made up for the task."""
    if own:
        return min(own, key=lambda value: abs(lengths.measure(spec, value)[1] - length))
    unit = tasks.of(spec.task).unit
    if unit is units.patches:
        return _image()
    if unit is units.frames:
        return media.example_audio(length / units.FRAMES_PER_S)
    return engine.sample(" ".join(WORDS[place % len(WORDS)] for place in range(max(1, length - 2))))


def _image() -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.effect_noise((480, 360), 60).convert("RGB").save(buffer, format="JPEG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")
