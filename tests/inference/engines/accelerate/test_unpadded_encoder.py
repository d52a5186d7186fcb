"""Layers without padding, and last layers of first tokens only: nobody's answer tells."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import TestCase
from unittest.mock import patch

import numpy as np
import torch
import transformers

from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.accelerate import cuda_graphs, ragged_attention, unpadded_encoder
from inference.engines.accelerate import installation as accelerate
from inference.engines.runtime import parity
from inference.engines.runtime.row_groups import BatchingMode
from tests import cuda_encoders, tiny_models

SHAPE = {
    "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 64, "initializer_range": 0.5, "pad_token_id": 0,
}  # fmt: skip
DISTILBERT = {
    "vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 64,
    "initializer_range": 0.5, "pad_token_id": 0,
}  # fmt: skip
NEAR = {"rtol": 1e-4, "atol": 1e-4}
TEXTS = ["the cat runs in paris", "a dog", "a dog", "it was a good house and the red cat sleeps on it", "small"]


def model_of(kind: str, **more: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        shape = DISTILBERT if kind == "distilbert" else SHAPE
        config = transformers.AutoConfig.for_model(kind, **{**shape, **more})
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


def classifier(kind: str, **more: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        shape = DISTILBERT if kind == "distilbert" else SHAPE
        config = transformers.AutoConfig.for_model(kind, **shape, num_labels=4, **more)
        return transformers.AutoModelForSequenceClassification.from_config(config).eval()


def scores(model: Any, texts: list[str]) -> torch.Tensor:
    with torch.inference_mode():
        return model(**tokenizer(texts)).logits


def trial_of(model: Any, answer: Callable[[Any, list[str]], Any]) -> parity.Trial:
    """One text at a time, or all padded."""

    def answers(texts: Any, mode: BatchingMode) -> list[parity.Answer]:
        groups = [list(texts)] if mode is BatchingMode.PADDED else [[text] for text in texts]
        return [[row] for group in groups for row in answer(model, group)]

    return parity.Trial(answers, TEXTS)


def install(model: Any) -> unpadded_encoder.UnpaddedForward:
    made = unpadded_encoder.make_unpadded_encoder(model)
    assert made is not None
    made.turn_on()
    layers: unpadded_encoder.UnpaddedForward = made.value
    return layers


def rows_computed(model: Any, run: Callable[[Any, list[str]], object], texts: list[str]) -> list[int]:
    """How many tokens each layer computes to its end."""
    with patch.object(
        unpadded_encoder.EncoderLayer,
        "compute_after_attention",
        autospec=True,
        side_effect=unpadded_encoder.EncoderLayer.compute_after_attention,
    ) as finish:
        run(model, texts)
    return [len(call.args[1]) for call in finish.call_args_list]


class EncoderTests(TestCase):
    def test_answers_are_those_of_each_text_alone_for_every_kind_of_model(self) -> None:
        for kind in unpadded_encoder.KINDS:
            for call_cost in (0, ragged_attention.CALL_COST):  # each length apart, and near lengths together
                with self.subTest(kind, call_cost=call_cost), patch.object(ragged_attention, "CALL_COST", call_cost):
                    model = model_of(kind)
                    alone = [states(model, [text])[0] for text in TEXTS]
                    install(model)
                    for own, together in zip(alone, states(model, TEXTS), strict=True):
                        torch.testing.assert_close(together, own, **NEAR)
                    torch.testing.assert_close(states(model, TEXTS[:1])[0], alone[0], **NEAR)

    def test_layers_compute_the_tokens_of_the_texts_and_no_others(self) -> None:
        model = model_of("bert")
        install(model)
        tokens = sum(len(text.split()) + 2 for text in TEXTS)
        self.assertEqual(rows_computed(model, states, TEXTS), [tokens, tokens])

    def test_a_model_that_answers_differently_is_padded(self) -> None:
        model = model_of("bert", is_decoder=True)
        before = states(model, TEXTS)
        with self.assertLogs(accelerate.logger, "WARNING"):
            installed = accelerate.install_shortcuts(model, tokenizer, "", trial_of(model, states))
        self.assertFalse(installed.unpadded)
        torch.testing.assert_close(states(model, TEXTS), before)

    def test_layers_with_other_parts_are_left_alone(self) -> None:
        model = model_of("bert")
        dense = model.encoder.layer[1].intermediate.dense
        model.encoder.layer[1].intermediate.dense = torch.nn.Sequential(dense)
        self.assertIsNone(unpadded_encoder.make_unpadded_encoder(model))

    def test_another_kind_of_model_is_left_alone(self) -> None:
        config = transformers.AutoConfig.for_model(
            "gpt2", n_embd=32, n_layer=1, n_head=2, vocab_size=100, bos_token_id=1, eos_token_id=1
        )
        self.assertIsNone(unpadded_encoder.make_unpadded_encoder(transformers.AutoModel.from_config(config)))


class FirstTokenTests(TestCase):
    def test_scores_of_every_kind_of_model_are_those_of_the_complete_model(self) -> None:
        for kind in unpadded_encoder.KINDS:
            for call_cost in (0, ragged_attention.CALL_COST):
                with self.subTest(kind, call_cost=call_cost), patch.object(ragged_attention, "CALL_COST", call_cost):
                    model = classifier(kind)
                    complete, alone = scores(model, TEXTS), scores(model, TEXTS[:1])
                    layers = install_for_firsts(model)
                    self.assertTrue(layers.first_only)
                    torch.testing.assert_close(scores(model, TEXTS), complete, **NEAR)
                    torch.testing.assert_close(scores(model, TEXTS[:1]), alone, **NEAR)

    def test_the_last_layer_computes_a_token_a_text(self) -> None:
        model = classifier("bert")
        install_for_firsts(model)
        self.assertEqual(rows_computed(model, scores, TEXTS)[1], len(TEXTS))

    def test_a_model_that_reads_other_tokens_too_computes_all(self) -> None:
        readers: dict[str, Any] = {
            "the last": lambda pooler, arguments: (arguments[0].flip(1),),
            "the second": lambda pooler, arguments: (arguments[0][:, 1].unsqueeze(1),),
        }
        for name, reader in readers.items():
            with self.subTest(name):
                model = classifier("bert")
                model.bert.pooler.register_forward_pre_hook(reader)
                alone = [scores(model, [text]) for text in TEXTS]
                trial = trial_of(model, scores)
                with self.assertLogs(accelerate.logger, "WARNING"):
                    accelerate.install_shortcuts(model, tokenizer, "text-classification", trial)
                for text, own in zip(TEXTS, alone, strict=True):
                    torch.testing.assert_close(scores(model, [text]), own, **NEAR)


def install_for_firsts(model: Any) -> unpadded_encoder.UnpaddedForward:
    layers = install(model)
    layers.first_only = True
    return layers


class EngineTests(TestCase):
    """Every task of such a model, through the engine."""

    TASKS: dict[str, Any] = {
        "text-classification": {"top_k": 3},
        "token-classification": {},
        "feature-extraction": {},
        "fill-mask": {},
        "zero-shot-classification": {"candidate_labels": ["red", "a good house"]},
    }

    def test_layers_on_a_gpu_answer_the_same_by_graphs_and_without_padding(self) -> None:
        for task, parameters in self.TASKS.items():
            with tempfile.TemporaryDirectory() as folder:
                model = str(tiny_models.build(task, Path(folder)))
                texts = [f"{text} [MASK]" for text in TEXTS] if task == "fill-mask" else TEXTS
                expected = loading.load_engine(ModelSpec(name=task, task=task, model=model), "cpu").predict(
                    texts, parameters
                )
                with (
                    self.subTest(task),
                    cuda_encoders.graphs() as captured,
                    cuda_encoders.flash_attention() as attention,
                ):
                    engine = loading.load_engine(
                        ModelSpec(name=task, task=task, model=model, max_batch_size=512), "cpu"
                    )
                    self.assertFalse(engine.padded)
                    for times, by_graphs in ((1, True), (1 + max(cuda_graphs.SIZES) // len(texts), False)):
                        attention.reset_mock()
                        replays = sum(graph.replays for graph in captured)
                        self.assert_close(engine.predict(texts * times, parameters), expected * times)
                        self.assertEqual(attention.called, not by_graphs)
                        self.assertEqual(sum(graph.replays for graph in captured) > replays, by_graphs)

    def test_answers_together_equal_those_one_by_one(self) -> None:
        for task, parameters in self.TASKS.items():
            with self.subTest(task), tempfile.TemporaryDirectory() as folder:
                model = str(tiny_models.build(task, Path(folder)))
                engine = loading.load_engine(ModelSpec(name=task, task=task, model=model), "cpu")
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
        elif isinstance(expected, float | np.floating):
            self.assertAlmostEqual(answer, expected, places=4)
        elif isinstance(expected, torch.Tensor):
            torch.testing.assert_close(answer, expected, **NEAR)
        else:
            self.assertEqual(answer, expected)
