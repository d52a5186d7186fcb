"""Packed weights change no score, take the place of the others, and can be put back."""

import tempfile
from pathlib import Path
from unittest import TestCase
from unittest.mock import Mock, patch

import torch
from torch import nn
from transformers import BertConfig, BertModel

from inference.engines.accelerate import prepacked_weights
from inference.engines.artifacts import memory
from tests import decoders
from tests.processes import resident

ROWS = (0, 1, 3, 16, 17, 18, 33, 100, 301)


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
                shortcut = prepacked_weights.make_packed_weights(model)
                assert shortcut is not None
                shortcut.turn_on()
                torch.testing.assert_close(scores_of(model, ids), expected, rtol=1e-3, atol=1e-3)
                self.assertLess(_numbers(model), size / 2)
                shortcut.turn_off()
                shortcut.turn_off()
                self.assertTrue(torch.equal(scores_of(model, ids), expected))
                self.assertEqual(_numbers(model), size)

    def test_weights_that_two_layers_share_stay(self) -> None:
        model = decoders.model("Llama", hidden_size=512, tie_word_embeddings=True)
        shortcut = prepacked_weights.make_packed_weights(model)
        assert shortcut is not None
        shortcut.turn_on()
        self.assertEqual(model.lm_head.weight.numel(), model.get_input_embeddings().weight.numel())

    def test_small_layers_and_numbers_that_the_processor_has_not_are_left_alone(self) -> None:
        self.assertIsNone(prepacked_weights.make_packed_weights(decoders.model("Llama")))
        self.assertIsNone(prepacked_weights.make_packed_weights(decoders.model("Llama", hidden_size=512).half()))
        with patch.object(torch.cpu, "get_capabilities", return_value={"avx2": True}):
            self.assertIsNone(
                prepacked_weights.make_packed_weights(decoders.model("Llama", hidden_size=512).bfloat16())
            )

    def test_short_numbers_are_packed_where_the_processor_has_them(self) -> None:
        model = decoders.model("Llama", hidden_size=512).bfloat16()
        ids = torch.tensor([[5, 3, 7, 8]])
        expected = scores_of(model, ids)
        shortcut = prepacked_weights.make_packed_weights(model)
        if shortcut is None:
            self.skipTest("a processor without bfloat16")
        shortcut.turn_on()
        torch.testing.assert_close(scores_of(model, ids), expected, rtol=0.02, atol=0.02)
        shortcut.turn_off()
        self.assertTrue(torch.equal(scores_of(model, ids), expected))

    def test_any_shape_of_rows_is_answered_as_by_the_layer(self) -> None:
        layer = nn.Linear(256, 256)
        shapes = [torch.randn(256), torch.randn(2, 0, 256), torch.randn(3, 7, 256).transpose(0, 1)]
        shapes += [torch.randn(40, 512)[:, ::2], torch.randn(5, 4, 256)[:, -1:], torch.randn(1, 256).expand(35, 256)]
        shapes += [torch.randn(count, 256) for count in ROWS]
        with torch.inference_mode():
            expected = [layer(states) for states in shapes]
            prepacked_weights.PackedLinear(layer, is_shared=False).turn_on()
            for states, answer in zip(shapes, expected, strict=True):
                with self.subTest(states.shape):
                    torch.testing.assert_close(layer(states), answer, rtol=1e-3, atol=1e-4)

    def test_few_rows_read_weights_of_16_bits_where_these_hold_what_32_do(self) -> None:
        with patch.object(prepacked_weights, "has_avx2_alone", return_value=False):
            self.check_weights_of_16_bits(most_rows=prepacked_weights.FEW)

    def test_all_rows_do_where_the_processor_has_avx2_alone(self) -> None:
        with patch.object(prepacked_weights, "has_avx2_alone", return_value=True):
            self.check_weights_of_16_bits(most_rows=max(ROWS))

    def check_weights_of_16_bits(self, most_rows: int) -> None:
        if torch.backends.quantized.engine not in ("fbgemm", "x86"):
            self.skipTest("a processor that FBGEMM is not made for")
        shapes = [torch.randn(256), torch.randn(3, 5, 256).transpose(0, 1), torch.randn(9, 512)[:, ::2]]
        shapes += [torch.randn(count, 256) for count in ROWS]
        quantized = torch.ops.quantized
        for bits, bias in ((torch.bfloat16, True), (torch.float16, False), (None, True)):
            layer = nn.Linear(256, 300, bias=bias)
            if bits:
                layer.weight.data = layer.weight.data.to(bits).float()
            with (
                torch.inference_mode(),
                patch.object(quantized, "linear_dynamic_fp16", wraps=quantized.linear_dynamic_fp16) as few,
            ):
                expected, own = [layer(states) for states in shapes], layer.weight.data.clone()
                packed = prepacked_weights.PackedLinear(layer, is_shared=False)
                packed.turn_on()
                for states, answer in zip(shapes, expected, strict=True):
                    with self.subTest(states.shape, bits=bits):
                        few.reset_mock()
                        torch.testing.assert_close(layer(states), answer, rtol=1e-4, atol=1e-5)
                        is_few = 0 < states.numel() <= most_rows * 256
                        self.assertEqual(few.called, bits is not None and is_few)
                packed.turn_off()
                torch.testing.assert_close(layer.weight.data, own, rtol=0, atol=prepacked_weights.SMALLEST / 2)

    def test_an_encoder_keeps_weights_that_16_bits_do_not_hold_where_the_processor_has_avx2_alone(self) -> None:
        model = BertModel(BertConfig(vocab_size=50, hidden_size=384, num_hidden_layers=2, intermediate_size=512))
        with patch.object(prepacked_weights, "has_avx2_alone", return_value=True):
            self.assertIsNone(prepacked_weights.make_packed_weights(model))
            halves = prepacked_weights.make_packed_weights(model.half().float())
        assert halves is not None
        self.assertEqual(len(halves.layers), 6 * 2 + 1)

    def test_few_numbers_of_rows_are_computed_as_code_is_kept_for_each(self) -> None:
        product = Mock(side_effect=lambda states: states)
        for count in range(1, 2000):
            self.assertEqual(len(prepacked_weights.multiply_padded_rows(product, torch.empty(count, 1))), count)
        counts = {len(call.args[0]) for call in product.call_args_list}
        self.assertLess(len(counts), 140)
        self.assertLess(max(prepacked_weights.round_rows(count) / count for count in range(1, 9000)), 1 + 1 / 16)

    def test_what_fails_in_the_middle_leaves_every_layer_computing(self) -> None:
        model = decoders.model("Llama", hidden_size=256, intermediate_size=512)
        ids = torch.tensor([[5, 3, 7, 8]])
        expected, size = scores_of(model, ids), _numbers(model)
        shortcut = prepacked_weights.make_packed_weights(model)
        assert shortcut is not None
        for owner, name in ((shortcut.layers[3], "turn_on"), (shortcut.layers[3], "turn_off")):
            with patch.object(owner, name, side_effect=MemoryError), self.assertRaises(MemoryError):
                getattr(shortcut, name)()
            torch.testing.assert_close(scores_of(model, ids), expected, rtol=1e-3, atol=1e-3)
            shortcut.turn_on()
            torch.testing.assert_close(scores_of(model, ids), expected, rtol=1e-3, atol=1e-3)
        with patch.object(shortcut.layers[3], "unpack", side_effect=MemoryError), self.assertRaises(MemoryError):
            shortcut.turn_off()
        torch.testing.assert_close(scores_of(model, ids), expected, rtol=1e-3, atol=1e-3)
        shortcut.turn_off()
        self.assertTrue(torch.equal(scores_of(model, ids), expected))
        self.assertEqual(_numbers(model), size)

    def test_layers_that_another_library_computes_are_left_alone(self) -> None:
        model = decoders.model("Llama", hidden_size=256, intermediate_size=512)
        layers = model.model.layers
        hooked, quantized, elsewhere = layers[0].mlp.up_proj, layers[1].self_attn.q_proj, layers[1].self_attn.o_proj
        hooked.forward = forward = Mock()
        quantized.weight = nn.Parameter(quantized.weight.detach().as_subclass(_Quantized))
        elsewhere.to("meta")
        shortcut = prepacked_weights.make_packed_weights(model)
        assert shortcut is not None
        found = [layer.layer for layer in shortcut.layers]
        self.assertFalse([layer for layer in found if any(layer is one for one in (hooked, quantized, elsewhere))])
        self.assertGreater(len(found), 5)
        shortcut.turn_on()
        shortcut.turn_off()
        self.assertIs(hooked.forward, forward)

    def test_a_mapped_file_is_not_in_memory_beside_them(self) -> None:
        if not memory.STATM.exists():
            self.skipTest("no /proc")
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        model = decoders.model("Llama", hidden_size=1024, intermediate_size=4096)
        size, kind = 4 * _numbers(model), type(model)
        model.save_pretrained(folder)
        del model
        memory.free_unused_memory()
        before = resident()
        model = kind.from_pretrained(folder)
        shortcut = prepacked_weights.make_packed_weights(model)
        assert shortcut is not None
        shortcut.turn_on()
        memory.free_unused_memory()
        self.assertLess(resident() - before, 1.5 * size)


class _Quantized(torch.Tensor):  # type: ignore[misc]
    """As of torchao: in a plain `nn.Linear`."""


def _numbers(model: torch.nn.Module) -> int:
    return sum(weights.numel() for weights in model.parameters())
