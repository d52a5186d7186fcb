"""The core of a tokenizer says what the tokenizer says."""

import tempfile
from pathlib import Path
from typing import Any
from unittest import TestCase

import torch
from transformers import AutoTokenizer

from inference.engines.accelerate.fast_tokenizer import make_encoder
from inference.engines.inputs.truncation import MARGIN, MOST_CHARACTERS, cut_unread_text
from inference.errors import InvalidInput
from tests import tiny_models

TEXTS = ["a cat", "a [SEP] cat", "", "the dog runs in paris " * 40, "a"]


def tokenizer(name: str = "text-classification", **settings: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return AutoTokenizer.from_pretrained(tiny_models.build(name, Path(folder)), **settings)


class EncoderTests(TestCase):
    def assert_same(self, tokenizer: Any, texts: list[str], limit: int | None = None) -> None:
        encode = make_encoder(tokenizer)
        assert encode
        tokenizer(texts, padding=True, split_special_tokens=True)  # leaves the core set otherwise
        found = encode(texts, limit)
        expected = tokenizer(texts, padding=True, truncation=True, max_length=limit, return_tensors="pt")
        self.assertEqual(found.keys(), expected.keys())
        for name, values in found.items():
            self.assertTrue(torch.equal(values, expected[name]), name)

    def test_texts_of_many_lengths_are_padded_and_cut(self) -> None:
        for limit in (16, 1_000_000):
            for side in ("left", "right"):
                with self.subTest(limit=limit, side=side):
                    self.assert_same(tokenizer(model_max_length=limit, padding_side=side, truncation_side=side), TEXTS)

    def test_other_inputs_of_other_models(self) -> None:
        for name in ("gpt2-features", "feature-extraction"):
            with self.subTest(name):
                made = tokenizer(name, model_max_length=64)
                made.pad_token = made.pad_token or made.eos_token
                self.assert_same(made, TEXTS)

    def test_one_text(self) -> None:
        self.assert_same(tokenizer(), ["a cat"])

    def test_a_limit_of_the_call_cuts_instead_of_the_tokenizer_s_own(self) -> None:
        self.assert_same(tokenizer(), TEXTS, limit=7)

    def test_a_tokenizer_without_padding_is_left_alone_and_says_so_itself(self) -> None:
        self.assertIsNone(make_encoder(tokenizer("gpt2-features", pad_token=None)))

    def test_a_tokenizer_that_goes_its_own_ways_is_left_alone(self) -> None:
        made = tokenizer()

        class Own(type(made)):  # type: ignore[misc]
            def _encode_plus(self, *args: Any, **options: Any) -> Any:
                return super()._encode_plus(*args, **options)

        made.__class__ = Own
        self.assertIsNone(make_encoder(made))


LIMIT = 50
LONG = {
    "words": "the dog runs in paris, a cat was good! " * 5_000,
    "one word": "dog" * 8_000,
    "blanks, then words": " " * 5_000 + "the dog runs in paris " * 5_000,
    "a long word, then words": "x" * 5_000 + " the dog runs in paris" * 5_000,
    "other letters": "大きい house\u0301\u200d 😀" * 5_000,
}


class Recorder:
    """A tokenizer that notes how many characters it was given."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.characters = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __call__(self, text: Any, *arguments: Any, **options: Any) -> Any:
        self.characters += len(text) if isinstance(text, str) else sum(map(len, text))
        return self.tokenizer(text, *arguments, **options)


class BeginningTests(TestCase):
    def test_its_tokens_are_those_of_the_whole_text_and_the_rest_is_not_looked_at(self) -> None:
        for side in ("right", "left"):
            for kind in ("text-classification", "gpt2-features"):
                made = tokenizer(kind, model_max_length=LIMIT, truncation_side=side)
                for name, text in LONG.items():
                    with self.subTest(name, side=side, kind=kind):
                        recorder = Recorder(made)
                        part = cut_unread_text(recorder, text)
                        self.assertEqual(made(part, truncation=True).input_ids, made(text, truncation=True).input_ids)
                        self.assertLess(recorder.characters, 2 * MOST_CHARACTERS * (LIMIT + MARGIN))

    def test_a_short_text_is_left_as_it_is(self) -> None:
        recorder = Recorder(tokenizer(model_max_length=LIMIT))
        self.assertEqual(cut_unread_text(recorder, "a cat " * 100), "a cat " * 100)
        self.assertEqual(recorder.characters, 0)

    def test_a_text_whose_tokens_are_behind_what_is_read_is_refused(self) -> None:
        """The rest of the text, which is not read, would change the answer."""
        made = tokenizer(model_max_length=LIMIT)
        most = MOST_CHARACTERS * (LIMIT + MARGIN)
        for text in (" " * 1_000_000, "a" + " " * most + "cat"):
            recorder = Recorder(made)
            with self.assertRaisesRegex(InvalidInput, f"in the {most} characters that are read"):
                cut_unread_text(recorder, text)
            self.assertLess(recorder.characters, 3 * most)
        self.assertEqual(cut_unread_text(made, "a" + " " * (most - 4) + "cat")[-3:], "cat")
