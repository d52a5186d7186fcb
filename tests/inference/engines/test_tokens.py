"""The core of a tokenizer says what the tokenizer says."""

import tempfile
from pathlib import Path
from typing import Any
from unittest import TestCase

import torch
from transformers import AutoTokenizer

from inference.engines.tokens import encoder
from tests import tiny_models

TEXTS = ["a cat", "a [SEP] cat", "", "the dog runs in paris " * 40, "a"]


def tokenizer(name: str = "text-classification", **settings: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return AutoTokenizer.from_pretrained(tiny_models.build(name, Path(folder)), **settings)


class EncoderTests(TestCase):
    def assert_same(self, tokenizer: Any, texts: list[str]) -> None:
        encode = encoder(tokenizer)
        assert encode
        tokenizer(texts, split_special_tokens=True)  # leaves the core set otherwise: neither pads nor cuts
        found = encode(texts)
        expected = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
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

    def test_a_tokenizer_that_goes_its_own_ways_is_left_alone(self) -> None:
        made = tokenizer()

        class Own(type(made)):  # type: ignore[misc]
            def _encode_plus(self, *args: Any, **options: Any) -> Any:
                return super()._encode_plus(*args, **options)

        made.__class__ = Own
        self.assertIsNone(encoder(made))
