"""Packed weights change no score, take the place of the others, and can be put back."""

from unittest import TestCase
from unittest.mock import patch

import torch

from inference.engines.accelerate import packed
from tests import decoders


def scores_of(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        scores: torch.Tensor = model(input_ids=ids).logits
        return scores


class PackedTests(TestCase):
    def test_scores_are_the_same_with_them_and_after_them(self) -> None:
        wide = {"hidden_size": 256, "intermediate_size": 512}
        ids = torch.tensor([[5, 3, 7, 8], [3, 9, 3, 4]])
        for kind, settings in (("Llama", wide), ("Llama", {**wide, "tie_word_embeddings": True}), ("Bloom", {})):
            with self.subTest(kind, **settings):
                model = decoders.model(kind, **{**settings, "hidden_size": 256})
                expected, size = scores_of(model, ids), _numbers(model)
                shortcut = packed.packed(model)
                assert shortcut is not None
                shortcut.on()
                torch.testing.assert_close(scores_of(model, ids), expected, rtol=1e-3, atol=1e-3)
                self.assertLess(_numbers(model), size / 2)
                shortcut.off()
                shortcut.off()
                self.assertTrue(torch.equal(scores_of(model, ids), expected))
                self.assertEqual(_numbers(model), size)

    def test_weights_that_two_layers_share_stay(self) -> None:
        model = decoders.model("Llama", hidden_size=512, tie_word_embeddings=True)
        shortcut = packed.packed(model)
        assert shortcut is not None
        shortcut.on()
        self.assertEqual(model.lm_head.weight.numel(), model.get_input_embeddings().weight.numel())

    def test_small_layers_and_numbers_that_the_processor_has_not_are_left_alone(self) -> None:
        self.assertIsNone(packed.packed(decoders.model("Llama")))
        self.assertIsNone(packed.packed(decoders.model("Llama", hidden_size=512).half()))
        with patch.object(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", return_value=False):
            self.assertIsNone(packed.packed(decoders.model("Llama", hidden_size=512).bfloat16()))

    def test_short_numbers_are_packed_where_the_processor_has_them(self) -> None:
        model = decoders.model("Llama", hidden_size=512).bfloat16()
        ids = torch.tensor([[5, 3, 7, 8]])
        expected = scores_of(model, ids)
        shortcut = packed.packed(model)
        if shortcut is None:
            self.skipTest("a processor without bfloat16")
        shortcut.on()
        torch.testing.assert_close(scores_of(model, ids), expected, rtol=0.02, atol=0.02)
        shortcut.off()
        self.assertTrue(torch.equal(scores_of(model, ids), expected))


def _numbers(model: torch.nn.Module) -> int:
    return sum(weights.numel() for weights in model.parameters())
