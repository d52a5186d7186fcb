"""Packed texts in one call of FlashAttention, in a stand-in of it: nobody's answer tells."""

from unittest import TestCase
from unittest.mock import patch

import torch

from inference.engines.accelerate import installation as accelerate
from inference.engines.accelerate import ragged_attention, unpadded_encoder, varlen_attention
from inference.engines.accelerate.ragged_attention import PackedTexts
from tests import cuda_encoders
from tests.inference.engines.accelerate.test_unpadded_encoder import (
    NEAR,
    TEXTS,
    classifier,
    install,
    model_of,
    scores,
    states,
    tokenizer,
    trial_of,
)

CUDA, CPU = torch.device("cuda:0"), torch.device("cpu")


class VarlenTests(TestCase):
    def setUp(self) -> None:
        self.attention = self.enterContext(cuda_encoders.flash_attention())

    def test_answers_are_those_of_each_text_alone_for_every_kind_of_model(self) -> None:
        for kind in unpadded_encoder.KINDS:
            with self.subTest(kind):
                model = model_of(kind)
                alone = [states(model, [text])[0] for text in TEXTS]
                install(model)
                self.attention.reset_mock()
                for texts, expected in ((TEXTS, alone), (TEXTS[:1], alone[:1])):
                    torch.testing.assert_close(states(model, texts), expected, **NEAR)
                self.assertEqual(self.attention.call_count, 2 * 2)  # a call a layer

    def test_scores_read_off_first_tokens_are_those_of_the_complete_model(self) -> None:
        for kind in unpadded_encoder.KINDS:
            with self.subTest(kind):
                model = classifier(kind)
                complete = scores(model, TEXTS)
                install(model).first_only = True
                torch.testing.assert_close(scores(model, TEXTS), complete, **NEAR)
                self.assertEqual(self.attention.call_args.args[5], 1)  # token of each text asks

    def test_installed_it_is_unpadded(self) -> None:
        model = model_of("bert")
        installed = accelerate.install_shortcuts(model, tokenizer, "", trial_of(model, states))
        self.assertFalse(installed.pads_batches)
        self.assertTrue(self.attention.called)

    def test_in_bfloat16_answers_are_those_of_padded_texts(self) -> None:
        model = model_of("bert", initializer_range=0.05).bfloat16()
        padded = states(model, TEXTS)
        install(model)
        torch.testing.assert_close(states(model, TEXTS), padded, rtol=0.02, atol=0.02)

    def test_it_is_for_half_precisions_on_gpus_that_can(self) -> None:
        short, other = torch.bfloat16, torch.float32
        for capability, device, dtype, size, serves in (
            ((8, 0), CUDA, short, 64, True), ((7, 5), CUDA, short, 64, False), ((9, 0), CUDA, other, 64, False),
            ((9, 0), CUDA, short, 12, False), ((9, 0), CUDA, short, 512, False), ((9, 0), CPU, short, 64, False),
        ):  # fmt: skip
            with patch.object(torch.cuda, "get_device_capability", return_value=capability):
                self.assertEqual(SERVES(device, dtype, size), serves)

    def test_other_numbers_are_attended_to_by_groups_of_near_lengths(self) -> None:
        model = model_of("bert")
        alone = [states(model, [text])[0] for text in TEXTS]
        with patch.object(varlen_attention, "supports_head_size", return_value=False):
            install(model)
        torch.testing.assert_close(states(model, TEXTS), alone, **NEAR)
        self.assertFalse(self.attention.called)


SERVES = varlen_attention.supports_head_size


class DeviceTests(TestCase):
    def test_the_layers_of_a_model_run_where_it_is(self) -> None:
        layers = install(model_of("bert").to("meta"))
        own = torch.arange(40) < torch.tensor([40, 17, 25, 3]).unsqueeze(1)
        self.assertEqual(layers.texts((*own.shape, 32), own).firsts.device.type, "meta")
        found = layers(torch.empty(*own.shape, 32, device="meta"), own[:, None, None])
        self.assertEqual((found.last_hidden_state.device.type, found.last_hidden_state.shape), ("meta", (4, 40, 32)))

    def test_all_places_are_on_the_device_of_the_states(self) -> None:
        own = torch.arange(40) < torch.tensor([40, 17, 25, 3]).unsqueeze(1)
        with patch.object(ragged_attention, "CALL_COST_ON_GPU", 0):
            texts = PackedTexts((*own.shape, 32), own, torch.device("meta"))
            groups = [part for group in texts.groups for part in group if isinstance(part, torch.Tensor)]
        places = [texts.order, texts.index, texts.firsts, texts.bounds, *groups]
        self.assertEqual({part.device.type for part in places if part is not None}, {"meta"})
        self.assertEqual(texts.bounds.dtype, torch.int32)

    def test_there_fewer_calls_of_attention_are_worth_more_padding(self) -> None:
        own = torch.arange(40) < torch.tensor([40, 17, 25, 3]).unsqueeze(1)
        counts = [len(PackedTexts((4, 40, 768), own, device).groups) for device in (None, torch.device("meta"))]
        self.assertEqual(counts, [4, 1])
