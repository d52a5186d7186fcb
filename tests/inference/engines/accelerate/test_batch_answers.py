"""Answers read off a whole output are those that the pipeline reads off its parts."""

from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest import TestCase

import torch
from transformers import PretrainedConfig, TextClassificationPipeline

from inference.engines.accelerate import batch_answers

LOGITS = torch.tensor([[0.3, -2.0, 0.3], [5.0, 1.0, -1.0], [0.0, 0.0, 0.0], [-3.0, 9.5, 100.0]])
FUNCTIONS = (None, "sigmoid", "softmax", "none")
TOPS: tuple[dict[str, Any], ...] = ({}, {"top_k": 1}, {"top_k": 2}, {"top_k": 9}, {"top_k": -1}, {"top_k": None})
PROBLEMS = (None, "regression", "single_label_classification", "multi_label_classification")


def pipe(labels: int = 3, problem: str | None = None) -> Any:
    """As much of the pipeline as the reading needs."""
    config = PretrainedConfig(num_labels=labels)
    config.problem_type = problem
    return SimpleNamespace(model=SimpleNamespace(config=config))


class ClassesTests(TestCase):
    def assert_like_the_pipeline(self, fake: Any, logits: torch.Tensor, **options: Any) -> None:
        _, _, parameters = TextClassificationPipeline._sanitize_parameters(fake, **options)  # noqa: SLF001 - the original
        expected = [
            TextClassificationPipeline.postprocess(fake, {"logits": row.unsqueeze(0)}, **parameters) for row in logits
        ]
        self.assertEqual(
            batch_answers.answer_classifications(fake, {"logits": logits}, [1] * len(logits), **parameters), expected
        )

    def test_every_function_and_every_number_of_labels(self) -> None:
        for function, top in product(FUNCTIONS, TOPS):
            with self.subTest(function=function, **top):
                self.assert_like_the_pipeline(pipe(), LOGITS, function_to_apply=function, **top)

    def test_every_kind_of_problem(self) -> None:
        for problem, top in product(PROBLEMS, TOPS):
            with self.subTest(problem=problem, **top):
                self.assert_like_the_pipeline(pipe(problem=problem), LOGITS, **top)

    def test_a_single_label(self) -> None:
        self.assert_like_the_pipeline(pipe(labels=1), LOGITS[:, :1])

    def test_short_types(self) -> None:
        self.assert_like_the_pipeline(pipe(), LOGITS.bfloat16(), top_k=2)

    def test_a_function_that_is_not_known(self) -> None:
        with self.assertRaisesRegex(ValueError, "sigmoid, softmax or none, not 7"):
            batch_answers.answer_classifications(pipe(), {"logits": LOGITS}, [1] * 4, function_to_apply=7)
