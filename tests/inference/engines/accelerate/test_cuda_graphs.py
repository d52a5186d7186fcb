"""A text encoder as CUDA graphs, in stand-ins of them: nobody's answer tells."""

from types import SimpleNamespace
from typing import Any
from unittest import TestCase
from unittest.mock import patch

import torch

from inference.engines.accelerate import cuda_graphs, prepacked_weights, unpadded_encoder
from inference.engines.accelerate import installation as accelerate
from inference.engines.accelerate.shortcut import Override
from tests import cuda_encoders
from tests.inference.engines.accelerate.test_unpadded_encoder import (
    NEAR,
    TEXTS,
    classifier,
    model_of,
    rows_computed,
    scores,
    states,
    trial_of,
)

TOKENIZER = SimpleNamespace(model_max_length=60, model_input_names=["input_ids", "attention_mask"])
LONG = " ".join(["cat"] * 40)  # longer than the longest graph


def made(model: Any) -> Override:
    found = cuda_graphs.make_graphs(model, TOKENIZER)
    assert found is not None
    found.turn_on()
    return found


class GraphsTests(TestCase):
    def setUp(self) -> None:
        self.captured = self.enterContext(cuda_encoders.graphs())

    def replays(self) -> int:
        return sum(graph.replays for graph in self.captured)

    def test_answers_are_those_of_each_text_alone_for_every_kind_of_model(self) -> None:
        for kind in unpadded_encoder.KINDS:
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
            {"input_ids": torch.ones(513, 4, dtype=torch.long), "attention_mask": torch.ones(513, 4, dtype=torch.long)},
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
        cuda_graphs.make_graphs(model_of("roberta"), unlimited)  # which tells 63 positions apart
        self.assertEqual(len(self.captured), 2 * len(cuda_graphs.SIZES) - 1)  # 512 texts of 32 tokens are too many

    def test_there_are_none_of_a_model_that_reads_fewer_tokens_than_the_shortest(self) -> None:
        short = SimpleNamespace(model_max_length=8, model_input_names=TOKENIZER.model_input_names)
        self.assertIsNone(cuda_graphs.make_graphs(model_of("bert"), short))

    def test_one_slow_call_decides_nothing(self) -> None:
        slow = iter([True])

        def seconds_of(shape: tuple[int, int]) -> float:
            return 9.0 if shape == (2, 16) and next(slow, False) else 5.0

        self.assertEqual(cuda_graphs.find_launch_bound_tokens(seconds_of, [(1, 16), (2, 16), (4, 16)]), 64)

    def test_there_are_none_of_what_the_gpu_computes_for_longer_than_it_is_launched(self) -> None:
        shapes = [(size, length) for size in cuda_graphs.SIZES for length in cuda_graphs.LENGTHS]
        for busy_from, expected in ((256, 128), (512, 256), (10**9, 512 * 256)):

            def seconds_of(shape: tuple[int, int], busy_from: int = busy_from) -> float:
                return 5.0 if shape[0] * shape[1] < busy_from else 6.1

            self.assertEqual(cuda_graphs.find_launch_bound_tokens(seconds_of, shapes), expected)
        with patch.object(cuda_graphs, "find_launch_bound_tokens", return_value=64):
            cuda_graphs.make_graphs(model_of("bert"), TOKENIZER)
        self.assertEqual(len(self.captured), 3 + 2)

    def test_it_is_captured_within_the_whole_model_largest_first(self) -> None:
        model, shapes = classifier("bert"), []
        model.register_forward_pre_hook(lambda *given: shapes.append(given[2]["input_ids"].shape), with_kwargs=True)
        masks: list[Any] = []
        model.bert.encoder.register_forward_pre_hook(
            lambda *given: masks.append(given[2]["attention_mask"]), with_kwargs=True
        )
        made(model)
        self.assertTrue(all(isinstance(mask, torch.Tensor) for mask in masks))  # also as libraries set themselves up
        self.assertEqual(shapes[0], (256, 32))
        self.assertEqual(shapes, sorted(shapes, key=lambda shape: -shape.numel()))

    def test_one_that_waits_for_the_device_cannot_be_captured_and_runs_plain(self) -> None:
        model = model_of("bert")
        expected = states(model, TEXTS)
        model.embeddings.register_forward_hook(lambda module, given, found: found * float(found.isfinite().all()))
        with self.assertLogs(accelerate.logger, "WARNING") as logs:
            installed = accelerate.install_shortcuts(model, TOKENIZER, "", trial_of(model, states))
        self.assertIn("not permitted when stream is capturing", logs.output[0])
        torch.testing.assert_close(states(model, TEXTS), expected, **NEAR)
        self.assertNotIn("forward", vars(model))
        self.assertTrue(installed.unpadded)  # which was off while they were to be captured
        self.assertEqual(rows_computed(model, states, TEXTS[1:3]), [8, 8])

    def test_beside_them_larger_batches_are_computed_without_padding(self) -> None:
        model = model_of("bert")
        texts = [*TEXTS, LONG]
        expected = states(model, texts)
        installed = accelerate.install_shortcuts(model, TOKENIZER, "", trial_of(model, states))
        before = self.replays()
        self.assertEqual(rows_computed(model, states, TEXTS), [])
        self.assertEqual(self.replays() - before, 1)
        tokens = sum(len(text.split()) + 2 for text in texts)
        self.assertEqual(rows_computed(model, states, texts), 2 * [prepacked_weights.round_rows(tokens)])
        self.assertEqual(self.replays() - before, 1)
        torch.testing.assert_close(states(model, texts), expected, **NEAR)
        self.assertFalse(installed.pads_batches)

    def test_a_model_that_is_spread_or_of_another_kind_is_left_alone(self) -> None:
        model = model_of("bert")
        model.hf_device_map = {"": "cpu"}  # as quantized ones have it
        self.assertIsNotNone(cuda_graphs.make_graphs(model, TOKENIZER))
        model.hf_device_map = {"embeddings": "cuda:0", "encoder": "cuda:1"}
        self.assertIsNone(cuda_graphs.make_graphs(model, TOKENIZER))
        self.assertIsNone(unpadded_encoder.make_unpadded_encoder(model))

    def test_installed_they_compute_and_what_they_raise_later_turns_them_off(self) -> None:
        model = model_of("bert")
        installed = accelerate.install_shortcuts(model, TOKENIZER, "", trial_of(model, states))
        expected = states(model, TEXTS)
        with (
            patch.object(cuda_encoders.Graph, "replay", side_effect=RuntimeError("no")),
            self.assertLogs(accelerate.logger, "WARNING"),
        ):
            found = installed.guard_call(lambda: states(model, TEXTS))
        torch.testing.assert_close(found, expected, **NEAR)
        self.assertNotIn("forward", vars(model))
