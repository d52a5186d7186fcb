"""Penalties and biases of tokens: the scores that they make, and what is refused."""

from __future__ import annotations

import unittest
from typing import Any

import torch

from inference.engines.generation.processors.penalties import CountPenalty, translate_penalties
from inference.errors import InvalidInput
from tests import decoders


class CountPenaltyTests(unittest.TestCase):
    def test_a_token_loses_by_how_often_the_answer_has_it_and_not_the_prompt(self) -> None:
        penalty = CountPenalty(2, frequency=0.5, presence=0.25)
        tokens, scores = torch.tensor([[3, 3, 1, 1, 2], [0, 0, 3, 3, 3]]), torch.zeros(2, 4)
        expected = [[0.0, -1.25, -0.75, 0.0], [0.0, 0.0, 0.0, -1.75]]
        self.assertEqual(penalty(tokens, scores).tolist(), expected)

    def test_before_the_first_token_nothing_is_lost(self) -> None:
        penalty = CountPenalty(3, frequency=2.0, presence=2.0)
        self.assertEqual(penalty(torch.tensor([[1, 2, 3]]), torch.ones(1, 4)).tolist(), [[1.0] * 4])


class ReplacedParametersTests(unittest.TestCase):
    def replaced(self, **run: Any) -> dict[str, Any]:
        return translate_penalties(run, prompt=2, vocabulary=100)

    def test_what_asks_for_nothing_leaves_nothing(self) -> None:
        self.assertEqual(
            self.replaced(top_k=3, frequency_penalty=0.0, presence_penalty=0.0, logit_bias={}), {"top_k": 3}
        )

    def test_a_bias_is_named_as_generate_names_it(self) -> None:
        self.assertEqual(
            self.replaced(logit_bias={"5": -100, "99": 0.5}), {"sequence_bias": [[[5], -100.0], [[99], 0.5]]}
        )

    def test_a_bias_of_no_token_or_of_no_number_is_refused(self) -> None:
        wrong: tuple[dict[str, Any], ...] = (
            {"100": 1}, {"-1": 1}, {"a": 1}, {"": 1}, {"\u0664": 1}, {"9" * 30: 1}, {"1": "1"}, {"1": True}, {"1": 101},
            {"1": float("nan")}, {"1": None}, {str(number): 1 for number in range(2000)},
        )  # fmt: skip
        for bias in wrong:
            with self.subTest(list(bias.items())[:1]), self.assertRaises(InvalidInput) as caught:
                self.replaced(logit_bias=bias)
            self.assertTrue(caught.exception.field.startswith("parameters.logit_bias"))

    def test_a_model_obeys_them_alone_and_in_a_call_of_many(self) -> None:
        engine = decoders.engine("Llama")
        greedy = {"do_sample": False, "return_full_text": False, "max_new_tokens": 20}
        prompts = ["a", "hello you", "bb"]
        for parameters in ({"logit_bias": {"65": 100}}, {"frequency_penalty": 2.0, "presence_penalty": 1.0}):
            with self.subTest(parameters):
                together = engine.predict(prompts, {**greedy, **parameters})
                self.assertEqual(together, [engine.predict([each], {**greedy, **parameters})[0] for each in prompts])
                self.assertNotEqual(together, engine.predict(prompts, greedy))
        [answer] = engine.predict(["a"], {**greedy, "logit_bias": {"65": 100}})
        self.assertEqual(len(set(answer[0]["generated_text"])), 1)
