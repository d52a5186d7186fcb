"""A small file that unfolds into gigabytes is refused by its header, in one sentence, before it is decoded."""

from __future__ import annotations

import base64
import io
import math
import os
import struct
import subprocess
import sys
import textwrap
import wave
import zlib
from pathlib import Path
from unittest import TestCase

import numpy as np

from inference.engines.inputs import media, task_inputs
from inference.errors import InvalidInput
from tests import tiny_models
from tests.conditions import PATIENCE_S

ROOM = 200 << 20  # bytes that refusing may take

# Run apart: what a process has ever taken is never given back.
REFUSE = """
import resource, sys
import soundfile
from PIL import Image
from inference.engines.inputs import media
from inference.errors import InvalidInput
value = sys.stdin.read()
read = media.decode_image if sys.argv[1] == "image" else lambda value: media.decode_audio(value, 16_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read(value)
except InvalidInput as refused:
    print(refused.message)
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def png_bomb(width: int, height: int) -> bytes:
    """Of one colour, in a thousandth of the bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packer = zlib.compressobj(9)
    row = bytes(1 + 3 * width)
    rows = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def tiff_bomb(side: int) -> bytes:
    """An image of 64 x 64 pixels in one tile of `side` x `side`."""
    packer = zlib.compressobj(9)
    tile = b"".join(packer.compress(bytes(3 * side)) for _ in range(side)) + packer.flush()
    short, long = 3, 4
    tags = [
        (256, short, 1, 64), (257, short, 1, 64), (258, short, 3, 0), (259, short, 1, 8), (262, short, 1, 2),
        (277, short, 1, 3), (322, short, 1, side), (323, short, 1, side), (324, long, 1, 0), (325, long, 1, len(tile)),
    ]  # fmt: skip
    end = 8 + 2 + 12 * len(tags) + 4
    places = {258: end, 324: end + 6}
    entries = b"".join(
        struct.pack("<HHII", tag, kind, count, places.get(tag, value)) for tag, kind, count, value in tags
    )
    head = b"II*\0" + struct.pack("<IH", 8, len(tags))
    return head + entries + bytes(4) + struct.pack("<HHH", 8, 8, 8) + tile


def gif_bomb(side: int) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("P", (8, 8)).save(buffer, "GIF")
    content = bytearray(buffer.getvalue())
    content[6:10] = struct.pack("<HH", side, side)
    return bytes(content)


def sound(*, rate: int = 16_000, channels: int = 1, frames: int = 1000) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((channels, 2, rate, frames, "NONE", ""))
        file.writeframes(bytes(2 * channels * frames))
    return buffer.getvalue()


def flac_that_says(frames: int) -> bytes:
    """A FLAC of two channels whose header says that it has `frames`."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros((1000, 2)), 48_000, format="FLAC")
    content = bytearray(buffer.getvalue())
    (facts,) = struct.unpack(">Q", content[18:26])  # rate, channels, bits, and in the last 36 bits the frames
    content[18:26] = struct.pack(">Q", facts >> 36 << 36 | frames)
    return bytes(content)


def refused(kind: str, content: bytes) -> tuple[str, int]:
    """The sentence, and the bytes that it took."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(REFUSE), kind],
        input=encoded(content),
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
        cwd=Path(__file__).parents[4],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    *sentence, taken = done.stdout.splitlines()
    return " ".join(sentence), int(taken)


class BombTests(TestCase):
    def test_images_are_refused_before_they_are_decoded(self) -> None:
        bombs = {
            "png": png_bomb(13_000, 13_000), "line": png_bomb(1_000_000, 9), "tiff": tiff_bomb(9_000),
            "gif": gif_bomb(60_000),
        }  # fmt: skip
        self.assertLess(len(bombs["png"]), 500_000)
        for name, content in bombs.items():
            with self.subTest(name):
                sentence, taken = refused("image", content)
                self.assertRegex(sentence, f"at most {media.MAX_PIXELS} pixels|100 times the other")
                self.assertLess(taken, ROOM)

    def test_sound_is_refused_before_it_is_decoded_and_resampled(self) -> None:
        bombs = {
            "1 sample a second": (sound(rate=1), "from 4000 to 192000 samples a second, not 1"),
            "too fast": (sound(rate=1_000_000), "from 4000 to 192000 samples a second, not 1000000"),
            "channels": (sound(channels=200), "at most 8 channels, not 200"),
            "slow and long": (sound(rate=4000, frames=1801 * 4000), "at most 1800 s"),
            "flac": (flac_that_says(1000 * 48_000), "at most 86400000 samples"),
        }
        for name, (content, words) in bombs.items():
            with self.subTest(name):
                sentence, taken = refused("audio", content)
                self.assertIn(words, sentence)
                self.assertLess(taken, ROOM)

    def test_the_images_of_one_input_share_the_bound(self) -> None:
        half = encoded(png_bomb(5_000, 6_000))
        chat = [{"role": "user", "content": [{"type": "image", "image": half}] * 2}]
        for value in ({"images": [half] * 2, "text": "both"}, chat):
            with self.assertRaisesRegex(InvalidInput, "together, not 60000000"):
                task_inputs.read_image_and_text(value, None)


class ImageTests(TestCase):
    def test_an_image_is_rgb_and_the_right_way_up(self) -> None:
        from PIL import Image

        buffer = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = 6  # turned by a quarter
        Image.new("L", (40, 30)).save(buffer, "JPEG", exif=exif)
        for value, size in ((encoded(buffer.getvalue()), (30, 40)), (tiny_models.png(size=(40, 30)), (40, 30))):
            read = media.decode_image(value)
            self.assertEqual((read.size, read.mode), (size, "RGB"))

    def test_what_is_no_image_is_refused(self) -> None:
        with self.assertRaisesRegex(InvalidInput, "must be one of JPEG, PNG"):
            media.decode_image(encoded(b"nothing"))


class SoundTests(TestCase):
    def test_a_long_sound_is_resampled_in_pieces_that_fit_together(self) -> None:
        import soundfile

        rate, wanted, seconds = 44_100, 16_000, 65
        times = np.arange(seconds * rate) / rate
        both = np.stack([np.sin(2 * math.pi * 440 * times), np.zeros(len(times))], axis=1)
        buffer = io.BytesIO()
        soundfile.write(buffer, both, rate, format="WAV", subtype="FLOAT")
        read = media.decode_audio(encoded(buffer.getvalue()), wanted)
        self.assertEqual(read.shape, (seconds * wanted,))
        expected = np.sin(2 * math.pi * 440 * np.arange(seconds * wanted) / wanted) / 2
        edge = wanted // 10
        np.testing.assert_allclose(read[edge:-edge], expected[edge:-edge], atol=1e-3)

    def test_pieces_of_a_high_rate_are_as_small_as_those_of_an_ordinary_one(self) -> None:
        import soundfile

        rate = 191_999  # a prime number: seconds of it are the worst lengths to transform
        buffer = io.BytesIO()
        soundfile.write(buffer, np.zeros(20 * rate, np.float32), rate, format="WAV")
        with soundfile.SoundFile(io.BytesIO(buffer.getvalue())) as opened:
            pieces = list(media.resample_pieces(opened, 16_000))
        self.assertEqual(sum(map(len, pieces)), 20 * 16_000)
        self.assertLessEqual(max(map(len, pieces)) / 16_000 * rate, media.MAX_BLOCK)

    def test_no_samples_are_refused(self) -> None:
        with self.assertRaisesRegex(InvalidInput, "The audio is empty"):
            media.decode_audio(encoded(sound(frames=0)), 16_000)
