"""A text encoder as CUDA graphs, in stand-ins of them: nobody's answer tells."""

from types import SimpleNamespace
from typing import Any
from unittest import TestCase
from unittest.mock import patch

import torch

from inference.catalog.specs import CUDA_GRAPHS, ENCODERS
from inference.engines import backends
from inference.engines.accelerate import encoders, graphs
from inference.engines.accelerate import install as accelerate
from inference.engines.accelerate.install import Override
from tests import cuda_encoders
from tests.inference.engines.test_encoders import NEAR, TEXTS, classifier, model_of, scores, states, trial_of

TOKENIZER = SimpleNamespace(model_max_length=60, model_input_names=["input_ids", "attention_mask"])
LONG = " ".join(["cat"] * 40)  # longer than the longest graph


def made(model: Any) -> Override:
    found = graphs.graphs(model, TOKENIZER)
    assert found is not None
    found.on()
    return found


class GraphsTests(TestCase):
    def setUp(self) -> None:
        self.captured = self.enterContext(cuda_encoders.graphs())

    def replays(self) -> int:
        return sum(graph.replays for graph in self.captured)

    def test_answers_are_those_of_each_text_alone_for_every_kind_of_model(self) -> None:
        for kind in encoders.KINDS:
            with self.subTest(kind):
                model = model_of(kind)
                alone = [states(model, [text])[0] for text in TEXTS]
                made(model)
                before = self.replays()
                for texts, expected in ((TEXTS, alone), (TEXTS[1:3], alone[1:3]), (TEXTS[:1], alone[:1])):
                    torch.testing.assert_close(states(model, texts), expected, **NEAR)
                self.assertEqual(self.replays() - before, 3)

    def test_an_answer_outlives_the_next_call(self) -> None:
        model = model_of("bert")
        expected = states(model, TEXTS)
        made(model)
        found = states(model, TEXTS)
        states(model, [LONG.replace("cat", "dog")[:40]])
        states(model, TEXTS[::-1])
        torch.testing.assert_close(found, expected, **NEAR)

    def test_a_short_batch_sees_nothing_of_the_long_one_before(self) -> None:
        model = model_of("bert")
        (expected,) = states(model, ["a dog"])
        made(model)
        states(model, ["a dog and a cat and a dog and"])
        torch.testing.assert_close(states(model, ["a dog"])[0], expected, **NEAR)

    def test_scores_of_a_head_are_those_of_the_plain_model(self) -> None:
        model = classifier("bert")
        expected = scores(model, TEXTS)
        made(model)
        torch.testing.assert_close(scores(model, TEXTS), expected, **NEAR)
        self.assertEqual(self.replays(), 1)

    def test_what_no_graph_computes_runs_as_it_comes(self) -> None:
        model = model_of("bert")
        calls: list[dict[str, Any]] = [
            {"input_ids": torch.ones(2, 40, dtype=torch.long), "attention_mask": torch.ones(2, 40, dtype=torch.long)},
            {"input_ids": torch.ones(65, 4, dtype=torch.long), "attention_mask": torch.ones(65, 4, dtype=torch.long)},
            {"input_ids": torch.ones(2, 4, dtype=torch.long)},
            {"inputs_embeds": torch.ones(2, 4, 32)},
        ]
        with torch.inference_mode():
            expected = [model(**call).last_hidden_state for call in calls]
            made(model)
            for call, own in zip(calls, expected, strict=True):
                torch.testing.assert_close(model(**call).last_hidden_state, own)
            ids = calls[0]["input_ids"][:, :4]
            self.assertEqual(len(model(ids, attention_mask=ids, output_hidden_states=True).hidden_states), 3)
        self.assertEqual(self.replays(), 0)

    def test_there_are_few_and_none_is_longer_than_the_model_reads(self) -> None:
        unlimited = SimpleNamespace(model_max_length=10**30, model_input_names=TOKENIZER.model_input_names)
        graphs.graphs(model_of("roberta"), unlimited)  # which tells 63 positions apart
        self.assertEqual(
            len(self.captured), len(graphs.SIZES) * len([length for length in graphs.LENGTHS if length < 64])
        )

    def test_it_is_captured_within_the_whole_model_largest_first(self) -> None:
        model, shapes = classifier("bert"), []
        model.register_forward_pre_hook(lambda *given: shapes.append(given[2]["input_ids"].shape), with_kwargs=True)
        masks: list[Any] = []
        model.bert.encoder.register_forward_pre_hook(
            lambda *given: masks.append(given[2]["attention_mask"]), with_kwargs=True
        )
        made(model)
        self.assertTrue(all(isinstance(mask, torch.Tensor) for mask in masks))  # also as libraries set themselves up
        self.assertEqual(shapes[0], (64, 32))
        self.assertEqual(shapes, sorted(shapes, key=lambda shape: -shape.numel()))

    def test_one_that_waits_for_the_device_cannot_be_captured_and_runs_plain(self) -> None:
        model = model_of("bert")
        expected = states(model, TEXTS)
        model.embeddings.register_forward_hook(lambda module, given, found: found * float(found.isfinite().all()))
        with self.assertLogs(accelerate.logger, "WARNING") as logs:
            installed = accelerate.install(model, TOKENIZER, "", trial_of(model, states), encoder=CUDA_GRAPHS)
        self.assertIn("not permitted when stream is capturing", logs.output[0])
        torch.testing.assert_close(states(model, TEXTS), expected, **NEAR)
        self.assertNotIn("forward", vars(model))
        self.assertTrue(installed.unpadded)  # as it is on a CPU

    def test_what_computes_plainly_though_it_was_asked_for_is_told(self) -> None:
        model = model_of("bert")
        with (
            patch.object(accelerate, "_no_padding", return_value=None),
            patch.object(torch.cuda, "CUDAGraph", side_effect=RuntimeError("no")),
            self.assertLogs(accelerate.logger, "WARNING"),
        ):
            for encoder in ENCODERS:
                installed = accelerate.install(model, TOKENIZER, "", trial_of(model, states), encoder=encoder)
                self.assertEqual(installed.verdict.note, f"{backends.PLAIN} {encoder}.")

    def test_a_model_that_is_spread_or_of_another_kind_is_left_alone(self) -> None:
        model = model_of("bert")
        model.hf_device_map = {"": "cpu"}  # as quantized ones have it
        self.assertIsNotNone(encoders.no_padding(model))
        model.hf_device_map = {"embeddings": "cuda:0", "encoder": "cuda:1"}
        self.assertIsNone(graphs.graphs(model, TOKENIZER))
        self.assertIsNone(encoders.no_padding(model, is_asked=True))

    def test_installed_they_compute_and_what_they_raise_later_turns_them_off(self) -> None:
        model = model_of("bert")
        installed = accelerate.install(model, TOKENIZER, "", trial_of(model, states), encoder=CUDA_GRAPHS)
        self.assertTrue(installed.padded)
        self.assertNotIn(backends.PLAIN, installed.verdict.note)
        expected = states(model, TEXTS)
        with (
            patch.object(cuda_encoders.Graph, "replay", side_effect=RuntimeError("no")),
            self.assertLogs(accelerate.logger, "WARNING"),
        ):
            found = installed.guard(lambda: states(model, TEXTS))
        torch.testing.assert_close(found, expected, **NEAR)
        self.assertNotIn("forward", vars(model))
