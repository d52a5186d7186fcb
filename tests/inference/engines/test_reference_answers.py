"""A model answers here as transformers' own pipeline does, made from the same unchanged files."""

import json
import tempfile
from pathlib import Path
from typing import Any
from unittest import TestCase
from unittest.mock import patch

import torch
import transformers
from transformers import pipeline

from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.artifacts import pipeline_loader
from inference.engines.runtime.engine_calls import run_engine_with_isolation
from inference.engines.runtime.json_values import convert_to_json
from inference.engines.runtime.parity import are_alike
from inference.engines.runtime.row_groups import BatchingMode
from inference.errors import ModelUnavailable
from tests import decoders, tiny_models

END = "<|endoftext|>"
TEXTS = [f"the cat{END}", "the cat", f"{END}a dog{END}{END}", "a house in paris, red and good", f"the dog{END}"]
NLI = {
    "id2label": {0: "contradiction", 1: "neutral", 2: "entailment"},
    "label2id": {"contradiction": 0, "neutral": 1, "entailment": 2},
}
LABELS = {"candidate_labels": ["red", f"good{END}"]}


class FolderTestCase(TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def save(self, kind: str, tokenizer: Any = None, **config: Any) -> None:
        """Save a decoder that classifies, with a byte-level tokenizer."""
        tokenizer = tokenizer or tiny_models.byte_tokenizer()
        made = getattr(transformers, f"{kind}Config")(
            vocab_size=len(tokenizer),
            initializer_range=0.5,
            **decoders.SETTINGS[kind],
            **{"pad_token_id": None, **NLI, **config},
        )
        with torch.random.fork_rng():
            torch.manual_seed(tiny_models.SEED)
            model = getattr(transformers, f"{kind}ForSequenceClassification")(made)
        model.save_pretrained(self.folder)
        tokenizer.save_pretrained(self.folder)

    def engine(self, task: str = "text-classification", **spec: Any) -> Any:
        return loading.load_engine(ModelSpec(name="m", task=task, model=str(self.folder), **spec), "cpu")

    def assert_answers_of_the_library(self, engine: Any, inputs: list[str], parameters: dict[str, Any]) -> None:
        bare = pipeline(engine.task, model=str(self.folder), device="cpu")
        expected = [convert_to_json(bare(text, **parameters)) for text in inputs]
        self.assertTrue(
            are_alike(convert_to_json(run_engine_with_isolation(engine, inputs, parameters).outcomes), expected),
            "together",
        )
        for text, answer in zip(inputs, expected, strict=True):
            self.assertTrue(
                are_alike(convert_to_json(run_engine_with_isolation(engine, [text], parameters).outcomes), [answer]),
                text,
            )


class MaskTests(FolderTestCase):
    def test_a_model_generates_though_its_tokenizer_makes_no_mask(self) -> None:
        tiny_models.build("text-generation", self.folder)
        file = self.folder / "tokenizer_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "model_input_names": ["input_ids"]}))
        engine = self.engine("text-generation")
        self.assertIsNotNone(engine.stepper)
        parameters = {"max_new_tokens": 4, "do_sample": False}
        texts = ["the cat", "a", "it is a good house"]
        self.assert_answers_of_the_library(engine, texts, parameters)
        counted = run_engine_with_isolation(engine, texts, {**parameters, "details": True}).outcomes
        self.assertEqual([answer[0]["details"]["prompt_tokens"] for answer in counted], [7, 1, 18])


class WholeTests(FolderTestCase):
    def test_an_answer_of_a_pipeline_called_as_a_whole_has_what_the_prompt_leaves_of_the_context(self) -> None:
        tiny_models.build("text-generation", self.folder)
        file = self.folder / "tokenizer_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "pad_token": None, "eos_token": None}))
        engine = self.engine("text-generation")
        self.assertIsNone(engine.steps)
        [answer] = run_engine_with_isolation(
            engine, ["the cat"], {"max_new_tokens": 1000, "do_sample": False, "details": True}
        ).outcomes
        self.assertEqual(answer[0]["details"]["generated_tokens"], engine.max_tokens - len("the cat"))


class DecoderTests(FolderTestCase):
    def test_a_decoder_without_a_padding_token_classifies_texts_that_end_in_its_end_token(self) -> None:
        for kind, mode in (
            ("GPT2", BatchingMode.EQUAL),
            ("Llama", BatchingMode.PADDED),
            ("Qwen2", BatchingMode.PADDED),
        ):
            with self.subTest(kind):
                self.save(kind)
                engine = self.engine()
                self.assert_answers_of_the_library(engine, TEXTS, {"top_k": 1})
                self.assertIs(engine.shortcuts.batching_choice.mode, mode)

    def test_so_it_does_with_a_padding_token_that_only_the_tokenizer_has(self) -> None:
        tokenizer = tiny_models.byte_tokenizer("<pad>")
        tokenizer.pad_token = "<pad>"
        self.save("Llama", tokenizer)
        self.assert_answers_of_the_library(self.engine(), [*TEXTS, "the cat<pad>", "a<pad><pad>"], {"top_k": 1})

    def test_texts_are_padded_with_the_token_that_the_model_takes_for_padding(self) -> None:
        tokenizer = tiny_models.byte_tokenizer("<pad>")
        self.save("Llama", tokenizer, pad_token_id=tokenizer.convert_tokens_to_ids("<pad>"))
        engine = self.engine()
        self.assert_answers_of_the_library(engine, [*TEXTS, "the cat<pad>"], {"top_k": 1})
        self.assertIs(engine.shortcuts.batching_choice.mode, BatchingMode.PADDED)

    def test_labels_that_end_in_the_end_token_are_scored_too(self) -> None:
        self.save("Llama")
        self.assert_answers_of_the_library(
            self.engine("zero-shot-classification"), TEXTS, {**LABELS, "hypothesis_template": "{}"}
        )


class TrialTests(FolderTestCase):
    def test_a_change_that_moves_an_answer_is_refused_with_the_text(self) -> None:
        self.save("Llama")

        def change(spec: Any, pipe: Any, **given: Any) -> None:
            pipe.tokenizer.pad_token = END
            pipe.model.config.pad_token_id = pipe.tokenizer.pad_token_id

        with patch.object(pipeline_loader, "set_up_padding", change), self.assertRaises(ModelUnavailable) as caught:
            self.engine()
        self.assertIn(f"'the cat{END}' is answered otherwise", caught.exception.message)

    def test_case_and_cutting_are_tried_too(self) -> None:
        tiny_models.build("text-classification", self.folder)
        changes = (
            ("CAT", lambda tokenizer: setattr(tokenizer.backend_tokenizer, "normalizer", None)),
            ("a long text is cut", lambda tokenizer: setattr(tokenizer, "model_max_length", 20)),
        )
        for text, spoil in changes:

            def change(spec: Any, pipe: Any, spoil: Any = spoil, **given: Any) -> None:
                spoil(pipe.tokenizer)

            with (
                self.subTest(text),
                patch.object(pipeline_loader, "set_up_padding", change),
                self.assertRaises(ModelUnavailable) as caught,
            ):
                self.engine()
            self.assertIn(text, caught.exception.message)

    def test_the_length_that_the_catalog_says_is_no_difference(self) -> None:
        tiny_models.build("text-classification", self.folder)
        for length in (3, 20, 64, 500):
            self.assertEqual(self.engine(max_length=length).max_tokens, min(length, 64))

    def test_a_model_generates_by_the_step_though_its_table_lets_little_in(self) -> None:
        """Texts that are longer than that compare nothing."""
        tiny_models.build("text-generation", self.folder)
        for length in (16, 32):
            engine = self.engine("text-generation", max_length=length)
            self.assertEqual((engine.stepper is not None, engine.max_tokens), (True, length), engine.note)
