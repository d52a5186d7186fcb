"""The inputs of the measurements: made up for a task and a length, or taken from the user's own."""

import base64
import io
import random
from collections.abc import Sequence
from typing import Any

from inference.catalog import tasks
from inference.catalog.sizes import length_estimates, lengths
from inference.catalog.specs import ModelSpec
from inference.engines.base import Engine
from inference.engines.inputs import media

WORDS = "the people of this small town went to see what had been found near the old river that day and".split()  # noqa: SIM905 - reads better

TEXTS = 100  # texts that are compared, so that one label in a hundred that changes is seen
LONGEST = 128  # tokens of the longest of these texts


def make_sample(spec: ModelSpec, engine: Engine, length: int, own: Sequence[Any]) -> Any:
    """Return an input of about `length` tokens: the nearest of the user's own, or one made up for the task."""
    if own:
        return min(own, key=lambda value: abs(lengths.measure_inputs(spec, value)[1] - length))
    unit = tasks.find_task(spec.task).unit
    if unit is length_estimates.estimate_patches:
        return _image()
    if unit is length_estimates.estimate_frames:
        return media.make_example_wav(length / length_estimates.FRAMES_PER_S)
    return engine.make_input_from_text(" ".join(WORDS[place % len(WORDS)] for place in range(max(1, length - 2))))


def make_compared_texts(spec: ModelSpec, engine: Engine, lengths: Sequence[int]) -> list[Any]:
    """Return different texts of all lengths.

    If a task takes longer to answer, or its inputs are no texts, there is one input of each length.
    """
    task, rng = tasks.find_task(spec.task), random.Random(0)
    if task.generates or task.unit in (length_estimates.estimate_patches, length_estimates.estimate_frames):
        return [make_sample(spec, engine, length, ()) for length in lengths]
    longest = min(lengths[-1], LONGEST)
    return [
        engine.make_input_from_text(" ".join(rng.choices(WORDS, k=rng.randint(1, max(1, longest - 2)))))
        for _ in range(TEXTS)
    ]


def _image() -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.effect_noise((480, 360), 60).convert("RGB").save(buffer, format="JPEG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")
