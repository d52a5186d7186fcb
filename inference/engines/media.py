"""Images and sound out of base64, as they come in JSON.

Pipelines also take addresses and file names: a client's string must never reach them undecoded.
"""

from __future__ import annotations

import base64
import binascii
import io
import wave
from typing import Any

import numpy as np
import numpy.typing as npt

from inference.errors import InvalidInput

IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
MAX_AUDIO_SAMPLES = 1800 * 48_000  # half an hour of one channel at 48 kHz: a small file can hold hours of silence


def decode(value: Any, what: str) -> bytes:
    """The bytes of base64, or of a data: URL."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be a base64 string, not {type(value).__name__}.")
    text = value.partition(",")[2] if value.startswith("data:") else value
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"{what} must be base64 of the file's bytes; addresses are not fetched.") from error


def image(value: Any) -> Any:
    """A PIL image, RGB, the right way up."""
    from PIL import Image, ImageOps

    content = decode(value, "An image")
    try:
        with Image.open(io.BytesIO(content), formats=IMAGE_FORMATS) as opened:
            return ImageOps.exif_transpose(opened).convert("RGB")
    except Exception as error:  # Pillow's decoders raise many kinds
        raise InvalidInput(f"The image cannot be read; it must be one of {', '.join(IMAGE_FORMATS)}.") from error


def audio(value: Any, rate: int) -> npt.NDArray[np.float32]:
    """One channel of samples at `rate` per second."""
    import soundfile

    content = decode(value, "Audio")
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as opened:
            if opened.frames * opened.channels > MAX_AUDIO_SAMPLES:
                raise InvalidInput("The audio is longer than half an hour: send it in parts.")
            samples = opened.read(dtype="float32", always_2d=True).mean(axis=1)
            return _resampled(samples, opened.samplerate, rate)
    except (soundfile.LibsndfileError, RuntimeError, TypeError) as error:
        raise InvalidInput("The audio cannot be read; it must be WAV, FLAC, OGG or MP3.") from error


def png(picture: Any) -> str:
    """A PIL image as base64 of a PNG."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def example_image() -> str:
    from PIL import Image

    return png(Image.new("RGB", (32, 32)))


def example_audio() -> str:
    """A second of silence, as base64 of a WAV."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(bytes(2 * 16_000))
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _resampled(samples: npt.NDArray[np.float32], rate: int, wanted: int) -> npt.NDArray[np.float32]:
    """By cutting or extending the spectrum, which keeps what is below both Nyquist limits and adds nothing above."""
    count = round(len(samples) * wanted / rate)
    if rate == wanted or count == 0:
        return samples
    spectrum = np.fft.rfft(samples)
    resized = np.zeros(count // 2 + 1, dtype=spectrum.dtype)
    kept = min(len(spectrum), len(resized))
    resized[:kept] = spectrum[:kept]
    return (np.fft.irfft(resized, count) * (count / len(samples))).astype(np.float32)
