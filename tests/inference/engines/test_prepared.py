"""What is read ahead of a call is answered as what the call reads by itself."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest import TestCase
from unittest.mock import patch

from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.base import Engine
from inference.engines.embeddings import SentenceEmbeddings, SentenceSimilarity
from inference.engines.pipeline.engine import PipelineEngine
from inference.engines.runtime import engine_calls, parity
from inference.errors import InvalidInput
from tests import tiny_models

TEXTS = ["a cat", "the dog is here and there", "one"]


def engine(task: str, folder: Path) -> Engine:
    return loading.load_engine(ModelSpec(name="m", task=task, model=str(tiny_models.build(task, folder))), "cpu")


class PreparedTests(TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def assert_same(self, engine: Engine, inputs: list[Any], **parameters: Any) -> None:
        """And nothing is read by the call itself."""
        self.assertTrue(engine.prepares)
        apart = engine_calls.run_engine_with_isolation(engine, inputs, parameters).outcomes
        prepared = engine.prepare(inputs, parameters)
        with patch.object(type(engine), "predict", side_effect=AssertionError("it reads by itself")):
            report = engine_calls.run_engine_with_isolation(engine, inputs, parameters, prepared)
        self.assertEqual((report.outcomes, report.calls), (apart, 1))

    def test_texts_at_once(self) -> None:
        self.assert_same(engine("text-classification", self.folder), TEXTS)

    def test_masks(self) -> None:
        filled = engine("fill-mask", self.folder)
        assert isinstance(filled, PipelineEngine)
        mask = filled.pipe.tokenizer.mask_token
        self.assert_same(filled, [f"{text} {mask}" for text in TEXTS], top_k=2)

    def test_pictures_item_by_item(self) -> None:
        seen = engine("image-classification", self.folder)
        assert isinstance(seen, PipelineEngine)
        self.assert_same(seen, seen.feed.make_examples(seen.pipe))

    def test_embeddings(self) -> None:
        spec = ModelSpec(name="m", engine="x:Y", model=str(tiny_models.build("feature-extraction", self.folder)))
        embeddings = SentenceEmbeddings(spec)
        embeddings.load("cpu")
        self.assert_same(embeddings, TEXTS)

    def test_an_input_that_cannot_be_read_fails_alone(self) -> None:
        classified = engine("text-classification", self.folder)
        inputs = [*TEXTS, {"neither": "text"}]
        outcomes = engine_calls.run_engine_with_isolation(
            classified, inputs, {}, classified.prepare(inputs, {})
        ).outcomes
        self.assertEqual(outcomes[:3], engine_calls.run_engine_with_isolation(classified, TEXTS, {}).outcomes)
        self.assertIsInstance(outcomes[3], InvalidInput)

    def test_a_call_that_fails_reads_its_parts_by_itself(self) -> None:
        classified = engine("text-classification", self.folder)
        with patch.object(type(classified), "predict_prepared_inputs", side_effect=RuntimeError("out of memory")):
            report = engine_calls.run_engine_with_isolation(classified, TEXTS, {}, classified.prepare(TEXTS, {}))
        self.assertTrue(
            parity.are_alike(report.outcomes, engine_calls.run_engine_with_isolation(classified, TEXTS, {}).outcomes)
        )
        self.assertGreater(report.calls, 1)

    def test_an_input_alone_is_answered_by_predict_before_it_fails(self) -> None:
        classified, alone = engine("text-classification", self.folder), TEXTS[:1]
        with patch.object(type(classified), "predict_prepared_inputs", side_effect=RuntimeError("a shortcut")):
            report = engine_calls.run_engine_with_isolation(classified, alone, {}, classified.prepare(alone, {}))
        self.assertEqual(report.outcomes, engine_calls.run_engine_with_isolation(classified, alone, {}).outcomes)

    def test_a_class_with_a_predict_of_its_own_answers_by_it(self) -> None:
        class Own(PipelineEngine):
            def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
                return [f"own answer to {text}" for text in inputs]

        own = Own(ModelSpec(name="m", task="text-classification"))
        own.prepares = True
        self.assertFalse(own.can_prepare_ahead)
        self.assertTrue(engine("text-classification", self.folder).can_prepare_ahead)

    def test_a_class_that_changes_a_step_of_it_answers_by_predict(self) -> None:
        class Embeds(SentenceEmbeddings):
            def embed(self, texts: list[str]) -> Any:
                return super().embed([f"query: {text}" for text in texts])

        class Reads:
            def _tokenize_texts(self, texts: Any, parameters: Any = None) -> Any:
                raise NotImplementedError

        class Mixed(Reads, SentenceEmbeddings):
            pass

        class Loads(SentenceEmbeddings):
            """What it does before and after changes no answer on its way."""

            note = "mine"

            def __init__(self, spec: ModelSpec) -> None:
                super().__init__(spec)

            def load(self, device: str) -> None:
                super().load(device)

            def own_helper(self) -> None:
                pass

        class Own(Embeds):
            def prepare(self, inputs: list[Any], parameters: dict[str, Any]) -> Any:
                return inputs

            def predict_prepared_inputs(self, prepared: Any, parameters: dict[str, Any]) -> list[Any]:
                return list(prepared)

        expected = {SentenceEmbeddings: True, Loads: True, Own: True, Embeds: False, Mixed: False,
                    SentenceSimilarity: False}  # fmt: skip
        found = {kind: kind(ModelSpec(name="m", engine="x:Y")).can_prepare_ahead for kind in expected}
        self.assertEqual(found, expected)
