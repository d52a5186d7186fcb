"""Images and sound, decoded from base64, as which they come in JSON.

Pipelines also take addresses and file names: a client's string must never reach them undecoded.
"""

from __future__ import annotations

import base64
import binascii
import io
import wave
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from inference.errors import InvalidInput

if TYPE_CHECKING:
    import soundfile
    from PIL import Image

IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
MAX_PIXELS = 50_000_000  # of all images of one input: a file of some KB can decode to a thousand times as many bytes
MAX_RATIO = 100  # of an image's longer side to its shorter one, which processors scale up
TIFF_TILE = (322, 323)  # tags of a tile's width and length, which may be larger than the image's

RATES = (4_000, 192_000)  # least and most samples a second
MAX_CHANNELS = 8
MAX_AUDIO_S = 1800
MAX_AUDIO_SAMPLES = MAX_AUDIO_S * 48_000  # of all channels together, which is what decoding costs
BLOCK_S, OVERLAP_S = 30, 2  # seconds that are decoded and resampled at a time, and that neighbouring blocks share
MAX_BLOCK = BLOCK_S * 48_000  # samples; an FFT of a number of them that is nearly prime takes many times their memory


def decode_base64(value: object, what: str) -> bytes:
    """Return the bytes of base64, or of a data: URL."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be a base64 string, not {type(value).__name__}.")
    text = value.partition(",")[2] if value.startswith("data:") else value
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"{what} must be base64 of the file's bytes; addresses are not fetched.") from error


class Images:
    """The images of one input, which share the bound on pixels."""

    def __init__(self) -> None:
        self.pixels = 0

    def open_image(self, value: object) -> Image.Image:
        """Return a PIL image, RGB, the right way up.

        Its size is read from its header, and checked, before it is decoded.
        """
        from PIL import Image, ImageOps

        content = decode_base64(value, "An image")
        try:
            opened = Image.open(io.BytesIO(content), formats=IMAGE_FORMATS)
            self._check_image(opened)
            ImageOps.exif_transpose(opened, in_place=True)
            return opened if opened.mode == "RGB" else opened.convert("RGB")
        except InvalidInput:
            raise
        except Image.DecompressionBombError as error:
            raise _make_pixels_error("more") from error
        except Exception as error:  # Pillow's decoders raise many kinds of exceptions
            raise InvalidInput(f"The image cannot be read; it must be one of {', '.join(IMAGE_FORMATS)}.") from error

    def _check_image(self, opened: Image.Image) -> None:
        width, length = opened.size
        if max(width, length) > MAX_RATIO * min(width, length):
            raise InvalidInput(f"The image has {width} x {length} pixels; no side may be {MAX_RATIO} times the other.")
        tile_width, tile_length = (getattr(opened, "tag_v2", {}).get(tag, 0) for tag in TIFF_TILE)
        self.pixels += max(width * length, tile_width * tile_length)
        if self.pixels > MAX_PIXELS:
            raise _make_pixels_error(str(self.pixels))


def _make_pixels_error(pixels: str) -> InvalidInput:
    return InvalidInput(f"The images of an input must have at most {MAX_PIXELS} pixels together, not {pixels}.")


def decode_image(value: object) -> Image.Image:
    """Return the only image of an input."""
    return Images().open_image(value)


def decode_audio(value: object, rate: int) -> npt.NDArray[np.float32]:
    """Return one channel of sound, with `rate` samples a second."""
    import soundfile

    content = decode_base64(value, "Audio")
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as opened:
            _check_sound(opened)
            samples = np.concatenate(list(resample_pieces(opened, rate)) or [np.zeros(0, np.float32)])
    except (soundfile.LibsndfileError, RuntimeError, TypeError) as error:
        raise InvalidInput("The audio cannot be read; it must be WAV, FLAC, OGG or MP3.") from error
    if not len(samples):
        raise InvalidInput("The audio is empty: send at least some tenths of a second.")
    return samples


def _check_sound(opened: soundfile.SoundFile) -> None:
    """Check a sound by its header: a few KB can claim to be hours long, or to have one sample a second."""
    low, high = RATES
    if not low <= opened.samplerate <= high:
        raise InvalidInput(f"The audio must have from {low} to {high} samples a second, not {opened.samplerate}.")
    if opened.channels > MAX_CHANNELS:
        raise InvalidInput(f"The audio must have at most {MAX_CHANNELS} channels, not {opened.channels}.")
    if opened.frames > MAX_AUDIO_S * opened.samplerate or opened.frames * opened.channels > MAX_AUDIO_SAMPLES:
        raise InvalidInput(
            f"The audio must last at most {MAX_AUDIO_S} s and have at most {MAX_AUDIO_SAMPLES} samples in all its"
            f" channels, not {opened.frames / opened.samplerate:.0f} s and {opened.frames * opened.channels} samples."
            " Send it in parts."
        )


def resample_pieces(opened: soundfile.SoundFile, wanted: int) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the whole sound piece by piece, mixed to one channel and resampled.

    All its channels at once may be ten times as much.
    """
    rate, edge = opened.samplerate, OVERLAP_S // 2 * wanted
    block_s = min(BLOCK_S, MAX_BLOCK // rate)
    blocks = opened.blocks(block_s * rate, OVERLAP_S * rate, dtype="float32", always_2d=True)
    for number, block in enumerate(blocks):
        is_last = number * (block_s - OVERLAP_S) * rate + len(block) >= opened.frames
        piece = _resample_block(block.mean(axis=1), rate, wanted)
        yield piece[edge if number else 0 : None if is_last else -edge]


def encode_png(picture: Image.Image) -> str:
    """Return a PIL image as base64 of a PNG."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def make_example_png() -> str:
    """Return a small black picture, as base64 of a PNG file."""
    from PIL import Image

    return encode_png(Image.new("RGB", (32, 32)))


def make_example_wav(seconds: float = 1.0) -> str:
    """Return silence, as base64 of a WAV file."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(bytes(2 * int(16_000 * seconds)))
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _resample_block(samples: npt.NDArray[np.float32], rate: int, wanted: int) -> npt.NDArray[np.float32]:
    """Resample by cutting or extending the spectrum.

    This keeps what is below both Nyquist limits, and adds nothing above.
    """
    count = round(len(samples) * wanted / rate)
    if rate == wanted or count == 0:
        return samples
    spectrum = np.fft.rfft(samples)
    resized = np.zeros(count // 2 + 1, dtype=spectrum.dtype)
    kept = min(len(spectrum), len(resized))
    resized[:kept] = spectrum[:kept]
    return (np.fft.irfft(resized, count) * (count / len(samples))).astype(np.float32)
