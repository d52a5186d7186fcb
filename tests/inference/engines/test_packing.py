"""Packed batches: the layers see no padding, and nobody's answer tells."""

import tempfile
from pathlib import Path
from typing import Any
from unittest import TestCase
from unittest.mock import patch

import torch
import transformers

from inference.catalog import ModelSpec
from inference.engines import loading, packing
from tests import tiny_models

SHAPE = {
    "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 64, "initializer_range": 0.5, "pad_token_id": 0,
}  # fmt: skip
DISTILBERT = {
    "vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 64,
    "initializer_range": 0.5, "pad_token_id": 0,
}  # fmt: skip
TEXTS = ["the cat runs in paris", "a dog", "a dog", "it was a good house and the red cat sleeps on it", "small"]


def model_of(kind: str, **more: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        shape = DISTILBERT if kind == "distilbert" else SHAPE
        config = transformers.AutoConfig.for_model(kind, **shape, **more)
        return transformers.AutoModel.from_config(config).eval()


def tokenizer(texts: list[str], **options: Any) -> Any:
    """A token a word, numbered by its letters."""
    ids = [[1, *(2 + sum(map(ord, word)) % 90 for word in text.split()), 1] for text in texts]
    longest = max(map(len, ids))
    return {
        "input_ids": torch.tensor([row + [0] * (longest - len(row)) for row in ids]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids]),
    }


def states(model: Any, texts: list[str]) -> list[torch.Tensor]:
    """Of each text, those of its own tokens."""
    tokens = tokenizer(texts)
    with torch.inference_mode():
        padded = model(**tokens).last_hidden_state
    return [row[: int(count)] for row, count in zip(padded, tokens["attention_mask"].sum(1), strict=True)]


def seen_by_layers(model: Any, texts: list[str]) -> tuple[int, ...]:
    """The shape of what the first layer is given."""
    shapes = []
    first = next(module for name, module in model.named_modules() if name.endswith("layer.0"))
    hook = first.register_forward_pre_hook(lambda module, arguments: shapes.append(tuple(arguments[0].shape)))
    states(model, texts)
    hook.remove()
    return shapes[0]


@patch.object(packing, "RUN_COST", 0)
class PackingTests(TestCase):
    def test_answers_are_those_of_each_text_alone_for_every_kind_of_model(self):
        for kind in packing.LAYERS:
            with self.subTest(kind):
                model = model_of(kind)
                alone = [states(model, [text])[0] for text in TEXTS]
                self.assertTrue(packing.install(model, tokenizer))
                for own, together in zip(alone, states(model, TEXTS), strict=True):
                    torch.testing.assert_close(together, own, rtol=1e-4, atol=1e-4)

    def test_layers_see_the_tokens_of_the_texts_and_no_others(self):
        model = model_of("bert")
        packing.install(model, tokenizer)
        tokens = sum(len(text.split()) + 2 for text in TEXTS)
        self.assertEqual(seen_by_layers(model, TEXTS), (1, tokens, 32))

    def test_texts_of_one_length_are_left_as_they_are(self):
        model = model_of("bert")
        packing.install(model, tokenizer)
        self.assertEqual(seen_by_layers(model, ["a dog", "a cat"]), (2, 4, 32))

    def test_a_model_that_answers_differently_when_packed_is_padded(self):
        model = model_of("bert", is_decoder=True)
        before = states(model, TEXTS)
        with self.assertLogs(packing.logger, "WARNING"):
            self.assertFalse(packing.install(model, tokenizer))
        torch.testing.assert_close(states(model, TEXTS), before)

    def test_a_model_whose_layers_know_positions_is_not_tried(self):
        config = transformers.AutoConfig.for_model(
            "gpt2", n_embd=32, n_layer=1, n_head=2, vocab_size=100, bos_token_id=1, eos_token_id=1
        )
        self.assertFalse(packing.install(transformers.AutoModel.from_config(config), tokenizer))


class WorthTests(TestCase):
    def test_little_padding_of_a_small_model_is_cheaper_than_going_apart(self):
        model = model_of("bert")
        packing.install(model, tokenizer)
        self.assertEqual(seen_by_layers(model, ["a dog", "a red dog"]), (2, 5, 32))


@patch.object(packing, "RUN_COST", 0)
class EngineTests(TestCase):
    """Every task of such a model, through the engine."""

    TASKS: dict[str, Any] = {
        "text-classification": {"top_k": 3},
        "token-classification": {},
        "feature-extraction": {},
        "fill-mask": {},
        "zero-shot-classification": {"candidate_labels": ["red", "a good house"]},
    }

    def test_packed_answers_equal_those_one_by_one(self):
        for task, parameters in self.TASKS.items():
            with self.subTest(task), tempfile.TemporaryDirectory() as folder:
                model = str(tiny_models.build(task, Path(folder)))
                engine = loading.ready(ModelSpec(name=task, task=task, model=model), "cpu")
                self.assertFalse(engine.padded)
                texts = [f"{text} [MASK]" for text in TEXTS] if task == "fill-mask" else TEXTS
                alone = [engine.predict([text], parameters)[0] for text in texts]
                self.assert_close(engine.predict(texts, parameters), alone)

    def assert_close(self, answer: Any, expected: Any) -> None:
        if isinstance(expected, dict):
            self.assertEqual(answer.keys(), expected.keys())
            for key, value in expected.items():
                self.assert_close(answer[key], value)
        elif isinstance(expected, list | tuple):
            self.assertEqual(len(answer), len(expected))
            for one, other in zip(answer, expected, strict=True):
                self.assert_close(one, other)
        elif isinstance(expected, float):
            self.assertAlmostEqual(answer, expected, places=4)
        elif isinstance(expected, torch.Tensor):
            torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-4)
        else:
            self.assertEqual(answer, expected)
