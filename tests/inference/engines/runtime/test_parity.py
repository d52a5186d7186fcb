"""How inputs may run together is found out by trying."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import TestCase

import torch

from inference.engines.runtime.parity import SHORT_TYPES, TOLERANCE, Trial, are_alike
from inference.engines.runtime.row_groups import BatchingMode

LENGTHS = (1, 7, 7, 30)


def trial_of(answer: Callable[[int, list[int]], float], lengths: Sequence[int] = LENGTHS) -> Trial:
    """Of a model whose answer to a text of some tokens depends on the lengths of what it runs with."""

    def answers(inputs: Sequence[Any], mode: BatchingMode) -> list[Any]:
        found = []
        for length in inputs:
            same = [other for other in inputs if other == length]
            beside = {BatchingMode.PADDED: list(inputs), BatchingMode.EQUAL: same, BatchingMode.ALONE: [length]}[mode]
            found.append([torch.tensor([answer(length, beside)])])
        return found

    return Trial(answers, lengths)


def answers_of(answers: Mapping[BatchingMode, torch.Tensor]) -> Callable[[Sequence[Any], BatchingMode], list[Any]]:
    return lambda inputs, mode: [[answers[mode]]]


class BatchingModeTests(TestCase):
    def assert_choice(self, answer: Callable[[int, list[int]], float], mode: BatchingMode, *words: str) -> None:
        choice = trial_of(answer).choose_batching_mode()
        self.assertIs(choice.mode, mode)
        self.assertEqual(bool(choice.note), bool(words))
        for word in words:
            self.assertIn(word, choice.note)

    def test_a_model_that_sees_its_own_text_only_is_padded(self) -> None:
        self.assert_choice(lambda own, beside: own * 1.5, BatchingMode.PADDED)

    def test_a_sum_in_another_order_is_no_difference(self) -> None:
        self.assert_choice(lambda own, beside: own + 1e-5 * len(beside), BatchingMode.PADDED)

    def test_a_model_that_sees_padding_runs_one_length_at_a_time(self) -> None:
        self.assert_choice(lambda own, beside: max(beside), BatchingMode.EQUAL, "Padding", "one length")

    def test_a_model_that_sees_its_neighbours_runs_alone(self) -> None:
        self.assert_choice(lambda own, beside: len(beside), BatchingMode.ALONE, "else", "alone")

    def test_a_model_that_raises_when_it_is_padded_runs_one_length_at_a_time(self) -> None:
        def answer(own: int, beside: list[int]) -> float:
            if len(set(beside)) > 1:
                raise RuntimeError("no mask here")
            return own

        with self.assertLogs("inference.engines.runtime.parity", "WARNING") as logged:
            self.assert_choice(answer, BatchingMode.EQUAL, "raise an exception")
        self.assertIn("no mask here", str(logged.output))

    def test_a_model_that_answers_at_random_runs_alone_and_that_is_said(self) -> None:
        calls: list[int] = []

        def answer(own: int, beside: list[int]) -> float:
            calls.append(1)
            return float(len(calls))

        self.assert_choice(answer, BatchingMode.ALONE, "call to call")

    def test_no_number_is_far_from_any_number(self) -> None:
        self.assert_choice(lambda own, beside: float("nan") if len(beside) > 2 else own, BatchingMode.EQUAL, "Padding")


class TrialTests(TestCase):
    def test_a_text_that_the_model_cannot_read_alone_is_left_out(self) -> None:
        def answer(own: int, beside: list[int]) -> float:
            if own < 4:
                raise RuntimeError("too short")
            return own

        self.assertIs(trial_of(answer).choose_batching_mode().mode, BatchingMode.PADDED)

    def test_a_model_that_can_read_nothing_raises(self) -> None:
        with self.assertRaises(ZeroDivisionError):
            trial_of(lambda own, beside: 1 / 0)

    def test_steps_count_up_to_the_first_at_which_another_token_is_chosen(self) -> None:
        near = [torch.tensor([1.0, 1.00001]), torch.tensor([5.0, 0.0])]
        other = [torch.tensor([1.00001, 1.0]), torch.tensor([0.0, 9.0])]
        texts = {BatchingMode.ALONE: near, BatchingMode.PADDED: other}
        self.assertTrue(Trial(lambda inputs, mode: [texts[mode]], ["a"]).has_parity(BatchingMode.PADDED))
        texts[BatchingMode.PADDED] = [near[0], torch.tensor([5.0, 4.0])]
        self.assertFalse(Trial(lambda inputs, mode: [texts[mode]], ["a"]).has_parity(BatchingMode.PADDED))

    def test_what_is_never_chosen_hides_no_difference(self) -> None:
        alone, padded = torch.tensor([-torch.inf, -3e38, 1.0]), torch.tensor([-torch.inf, -3e38, 2.0])
        texts = {BatchingMode.ALONE: [alone], BatchingMode.PADDED: [padded], BatchingMode.EQUAL: [alone.clone()]}
        trial = Trial(lambda inputs, mode: [texts[mode]], ["a"])
        self.assertEqual([trial.has_parity(BatchingMode.PADDED), trial.has_parity(BatchingMode.EQUAL)], [False, True])

    def test_short_types_may_differ_by_more(self) -> None:
        texts = {BatchingMode.ALONE: torch.tensor([100.0, 1.0]), BatchingMode.PADDED: torch.tensor([103.0, 1.0])}
        for tolerance, holds in ((SHORT_TYPES, True), (TOLERANCE, False)):
            self.assertEqual(Trial(answers_of(texts), ["a"], tolerance).has_parity(BatchingMode.PADDED), holds)


class AlikeTests(TestCase):
    def test_answers(self) -> None:
        answer = [{"label": "a", "score": 0.5}]
        self.assertTrue(are_alike(answer, [{"label": "a", "score": 0.50001}]))
        for other in ([{"label": "b", "score": 0.5}], [{"label": "a", "score": 0.6}], answer * 2, [{"label": "a"}]):
            self.assertFalse(are_alike(answer, other))
