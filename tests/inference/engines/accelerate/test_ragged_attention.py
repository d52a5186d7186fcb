"""Texts of many lengths in one row: there and back, and attention that never leaves a text."""

from unittest import TestCase

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from inference.engines.accelerate.prepacked_weights import round_rows
from inference.engines.accelerate.ragged_attention import CALL_COST, Attention, PackedTexts, group_near_lengths
from tests.properties import QUICK

HEADS, SIZE = 2, 4
HIDDEN = HEADS * SIZE
ATTENTION = Attention(size=SIZE, scale=0.5)

lengths_of_texts = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def batch(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded rows with noise also in the padding, and what is no padding."""
    own = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    return torch.randn(*own.shape, HIDDEN, generator=torch.Generator().manual_seed(1)), own


def attention_alone(row: torch.Tensor) -> torch.Tensor:
    """Of one text to itself: (tokens, hidden) in and out."""
    parts = row.unflatten(1, (HEADS, SIZE)).transpose(0, 1)
    return functional.scaled_dot_product_attention(parts, parts, parts, scale=0.5).transpose(0, 1).flatten(1)


class TextsTests(TestCase):
    @QUICK
    @given(lengths_of_texts)
    def test_there_and_back_leaves_zeros_for_padding(self, lengths: list[int]) -> None:
        padded, own = batch(lengths)
        texts = PackedTexts(padded.shape, own)
        rows = texts.remove_padding(padded)
        self.assertEqual(len(rows), round_rows(sum(lengths)))
        torch.testing.assert_close(texts.add_padding(rows), padded * own.unsqueeze(2))

    def test_the_first_text_may_have_no_tokens(self) -> None:
        padded, own = batch([0, 5, 40, 33, 45])
        texts = PackedTexts(padded.shape, own)
        torch.testing.assert_close(texts.add_padding(texts.remove_padding(padded)), padded * own.unsqueeze(2))

    @QUICK
    @given(lengths_of_texts)
    def test_attention_is_that_of_each_text_alone(self, lengths: list[int]) -> None:
        padded, own = batch(lengths)
        texts = PackedTexts(padded.shape, own)
        rows = texts.remove_padding(padded)
        attended = texts.add_padding(ATTENTION.attend_all_tokens(texts, rows, rows, rows))
        firsts = texts.restore_order(ATTENTION.attend_first_tokens(texts, rows[texts.firsts], rows, rows))
        for text, length in enumerate(lengths):
            alone = attention_alone(padded[text, :length])
            torch.testing.assert_close(attended[text, :length], alone)
            torch.testing.assert_close(firsts[text], alone[0])

    @QUICK
    @given(lengths_of_texts, st.data())
    def test_a_text_that_is_no_number_stays_by_itself(self, lengths: list[int], data: st.DataObject) -> None:
        padded, own = batch(lengths)
        bad = data.draw(st.integers(0, len(lengths) - 1))
        padded[bad] = torch.nan
        texts = PackedTexts(padded.shape, own)
        rows = texts.remove_padding(padded)
        attended = texts.add_padding(ATTENTION.attend_all_tokens(texts, rows, rows, rows))
        for text, length in enumerate(lengths):
            self.assertEqual(bool(attended[text, :length].isnan().any()), text == bad)

    @QUICK
    @given(lengths_of_texts)
    def test_attention_in_bfloat16_is_that_of_float32(self, lengths: list[int]) -> None:
        padded, own = batch(lengths)
        texts = PackedTexts(padded.shape, own)
        rows = texts.remove_padding(padded).bfloat16()
        exact = ATTENTION.attend_all_tokens(texts, *(3 * [rows.float()]))
        attended = ATTENTION.attend_all_tokens(texts, rows, rows, rows)
        self.assertTrue(torch.equal(attended[: texts.tokens], exact[: texts.tokens].bfloat16()))

    def test_without_a_mask_all_tokens_are_the_texts(self) -> None:
        padded, _ = batch([3, 3])
        texts = PackedTexts(padded.shape, None)
        torch.testing.assert_close(texts.add_padding(texts.remove_padding(padded)), padded)


class NearTests(TestCase):
    @QUICK
    @given(lengths_of_texts.map(sorted), st.sampled_from([32, 384, 768]))
    def test_every_text_is_in_one_group_with_padding_cheaper_than_a_call(self, lengths: list[int], hidden: int) -> None:
        groups = group_near_lengths(lengths, hidden, CALL_COST)
        self.assertEqual([text for start, end in groups for text in range(start, end)], list(range(len(lengths))))
        for start, end in groups:
            padding = sum(2 * hidden * (lengths[end - 1] ** 2 - length**2) for length in lengths[start:end])
            self.assertLessEqual(padding, CALL_COST)
