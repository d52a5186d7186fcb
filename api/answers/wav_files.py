"""Sound that a model made, as a WAV file: clients of text-to-speech write the answer to a file as it is."""

from __future__ import annotations

import io
import wave
from array import array

from inference.catalog import tasks
from inference.catalog.specs import ModelSpec
from inference.catalog.tasks import AnswerShape

CONTENT_TYPE = "audio/wav"
FULL_SCALE = 32_767  # the largest sample of 16 bits
MOST_A_SECOND = 1_000_000  # samples a second; a rate must be below it
MOST_CHANNELS = 32  # more lists are not channels: they are samples, each with a list of its channels
JSON = "application/json"


def is_sound_wanted(spec: ModelSpec, accept: str) -> bool:
    """Return True if the answer is to be a file: the model makes sound, and the Accept header does not ask for JSON."""
    return tasks.find_task(spec.task).shape is AnswerShape.SOUND and (JSON not in accept or CONTENT_TYPE in accept)


def encode_wav(output: object) -> bytes | None:
    """Encode `{"audio": samples from -1 to 1, "sampling_rate": samples a second}` as a WAV file with 16 bits.

    The samples are a list, or a list for each channel. Returns None for an output of another shape.
    """
    match output:
        case {"audio": [[*_], *_] as channels, "sampling_rate": int(rate)} if _is_rate(rate):
            if len(channels) > MOST_CHANNELS:
                return None
        case {"audio": [*samples], "sampling_rate": int(rate)} if _is_rate(rate):
            channels = [samples]
        case _:
            return None
    try:
        frames = array("h", (_quantize(value) for frame in zip(*channels, strict=True) for value in frame))
    except (TypeError, ValueError):  # lists of lists, or channels of different lengths
        return None
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((len(channels), 2, rate, 0, "NONE", ""))
        file.writeframes(frames.tobytes())
    return buffer.getvalue()


def _is_rate(value: int) -> bool:
    return not isinstance(value, bool) and 0 < value < MOST_A_SECOND


def _quantize(value: float) -> int:
    return round(FULL_SCALE * min(1.0, max(-1.0, value)))
