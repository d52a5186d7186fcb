"""Scoring masks alone changes no answer, and spares the last layer everything else."""

import tempfile
from pathlib import Path
from typing import Any
from unittest import TestCase
from unittest.mock import patch

import torch
import transformers

from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.accelerate import fill_mask, installation
from inference.engines.runtime import parity
from inference.errors import InvalidInput
from tests import tiny_models
from tests.inference.engines.accelerate.test_unpadded_encoder import DISTILBERT, SHAPE

TEXTS = ["the [MASK] runs", "a [MASK] and a [MASK] in paris", "[MASK]"]


def scores_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Of the masked places, which have the number 3."""
    with torch.inference_mode():
        return model(input_ids=ids).logits[ids == 3]


class ScorerTests(TestCase):
    def test_masks_of_every_kind_of_model_have_the_scores_that_they_had(self) -> None:
        ids = torch.tensor([[5, 3, 7, 8], [3, 9, 3, 4], [9, 9, 9, 9]])
        for kind in ("albert", "bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta"):
            with self.subTest(kind):
                shape = DISTILBERT if kind == "distilbert" else SHAPE
                config = transformers.AutoConfig.for_model(kind, **shape)
                model = transformers.AutoModelForMaskedLM.from_config(config).eval()
                before = scores_of(model, ids)
                fill_mask.Scorer(model, 3).turn_on()
                torch.testing.assert_close(scores_of(model, ids), before)


class EngineTests(TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.spec = ModelSpec(name="m", task="fill-mask", model=str(tiny_models.build("fill-mask", Path(folder.name))))

    def test_answers_are_those_of_the_complete_model(self) -> None:
        with patch.object(fill_mask, "make_scorer", return_value=None):
            complete = loading.load_engine(self.spec, "cpu").predict(TEXTS, {"top_k": 3})
        self.assertEqual(loading.load_engine(self.spec, "cpu").predict(TEXTS, {"top_k": 3}), complete)

    def test_the_last_layer_sees_masks_only(self) -> None:
        engine: Any = loading.load_engine(self.spec, "cpu")
        seen: list[int] = []
        last = engine.pipe.model.get_output_embeddings()
        run = last.forward

        def forward(states: torch.Tensor) -> torch.Tensor:
            seen.append(len(states))
            scores: torch.Tensor = run(states)
            return scores

        with patch.object(last, "forward", forward):
            engine.predict(TEXTS, {})
        self.assertEqual(seen, [4])

    def test_the_best_are_chosen_where_the_model_computes_and_scores_stay_there(self) -> None:
        engine: Any = loading.load_engine(self.spec, "cpu")
        item_by_item: Any = loading.load_engine(self.spec, "cpu")
        item_by_item.at_once = None
        for parameters in ({}, {"top_k": 2}, {"targets": ["paris", "the"]}):
            with self.subTest(parameters):
                expected = item_by_item.predict(TEXTS, parameters)
                with patch.object(engine.pipe, "forward") as copied:  # which copies what the model answers
                    self.assertTrue(parity.are_alike(engine.predict(TEXTS, parameters), expected))
                copied.assert_not_called()

    def test_a_text_without_a_mask_fails_alone(self) -> None:
        engine: Any = loading.load_engine(self.spec, "cpu")
        good, bad = engine.predict([TEXTS[0], "no mask"], {})
        self.assertEqual((good, type(bad)), (engine.predict(TEXTS[:1], {})[0], InvalidInput))

    def test_a_model_that_would_answer_differently_scores_everything(self) -> None:
        wrong = patch.object(
            fill_mask.Scorer, "_choose_states", lambda self, last, arguments: 2 * arguments[0][self.masked]
        )
        with wrong, self.assertLogs(installation.logger, "WARNING"):
            engine = loading.load_engine(self.spec, "cpu")
        with patch.object(fill_mask, "make_scorer", return_value=None):
            complete = loading.load_engine(self.spec, "cpu").predict(TEXTS, {})
        self.assertEqual(engine.predict(TEXTS, {}), complete)
