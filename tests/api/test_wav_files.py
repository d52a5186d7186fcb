"""What a model made as samples, as a WAV file."""

import io
import struct
import wave
from typing import Any

from django.test import SimpleTestCase

from api.answers import wav_files


class WavTests(SimpleTestCase):
    def test_samples_are_of_16_bits_and_within_them(self) -> None:
        for audio, channels in (([0.0, 1.0, -2.0], 1), ([[0.0, 1.0, -2.0]], 1), ([[0.0, -2.0], [1.0, 0]], 2)):
            with (
                self.subTest(audio),
                wave.open(io.BytesIO(wav_files.encode_wav({"audio": audio, "sampling_rate": 8000}) or b"")) as file,
            ):
                self.assertEqual((file.getnchannels(), file.getframerate()), (channels, 8000))
                expected = (0, 32_767, -32_767) if channels == 1 else (0, 32_767, -32_767, 0)
                self.assertEqual(file.readframes(9), struct.pack(f"<{len(expected)}h", *expected))

    def test_what_is_no_sound_is_none(self) -> None:
        others: list[Any] = [
            None, [], {}, {"audio": [0.5]}, {"audio": ["a"], "sampling_rate": 1},
            {"audio": [[[0.5]]], "sampling_rate": 1}, {"audio": [0.5], "sampling_rate": 0},
            {"audio": [[0.5], [0.5, 0.5]], "sampling_rate": 1}, {"audio": "x", "sampling_rate": 1},
            {"audio": [[0.5]] * 100, "sampling_rate": 1}, {"audio": [[0.5]] * 70_000, "sampling_rate": 1},
        ]  # fmt: skip
        for output in others:
            with self.subTest(str(output)[:60]):
                self.assertIsNone(wav_files.encode_wav(output))
