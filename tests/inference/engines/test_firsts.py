"""First tokens alone: no classifier's answer tells, and the last layer has next to nothing to do."""

from typing import Any
from unittest import TestCase
from unittest.mock import patch

import torch
import transformers

from inference.engines import firsts, packing
from tests.inference.engines.test_packing import DISTILBERT, SHAPE, TEXTS, tokenizer


def classifier(kind: str, **more: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        shape = DISTILBERT if kind == "distilbert" else SHAPE
        config = transformers.AutoConfig.for_model(kind, **shape, num_labels=4, **more)
        return transformers.AutoModelForSequenceClassification.from_config(config).eval()


def scores(model: Any, texts: list[str]) -> torch.Tensor:
    with torch.inference_mode():
        return model(**tokenizer(texts)).logits


def tokens_in_last_layer(model: Any, texts: list[str]) -> int:
    seen: list[int] = []
    last = model.base_model.encoder.layer[-1].intermediate
    hook = last.register_forward_pre_hook(lambda layer, arguments: seen.append(arguments[0].shape[:-1].numel()))
    scores(model, texts)
    hook.remove()
    return seen[0]


class FirstTokenTests(TestCase):
    def test_scores_of_every_kind_of_model_are_those_of_the_complete_model(self):
        for kind in firsts.KINDS:
            for run_cost in (0, packing.RUN_COST):  # packed, and padded
                with self.subTest(kind, run_cost=run_cost), patch.object(packing, "RUN_COST", run_cost):
                    model = classifier(kind)
                    complete = scores(model, TEXTS)
                    alone = scores(model, TEXTS[:1])
                    packing.install(model.base_model, tokenizer)
                    self.assertTrue(firsts.install(model, tokenizer))
                    torch.testing.assert_close(scores(model, TEXTS), complete, rtol=1e-4, atol=1e-4)
                    torch.testing.assert_close(scores(model, TEXTS[:1]), alone, rtol=1e-4, atol=1e-4)

    def test_the_last_layer_computes_a_token_a_text(self):
        model = classifier("bert")
        firsts.install(model, tokenizer)
        self.assertEqual(tokens_in_last_layer(model, TEXTS), len(TEXTS))

    def test_a_model_that_reads_other_tokens_too_computes_all(self):
        model = classifier("bert")
        model.bert.pooler.register_forward_pre_hook(lambda pooler, arguments: (arguments[0].flip(1),))
        complete = scores(model, TEXTS)
        with self.assertLogs(firsts.logger, "WARNING"):
            self.assertFalse(firsts.install(model, tokenizer))
        torch.testing.assert_close(scores(model, TEXTS), complete)
        self.assertGreater(tokens_in_last_layer(model, TEXTS), len(TEXTS))

    def test_another_kind_of_model_is_left_alone(self):
        self.assertFalse(
            firsts.install(transformers.AutoModel.from_config(transformers.GPT2Config(n_layer=1)), tokenizer)
        )
