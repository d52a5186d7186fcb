"""A step that fails is narrowed down to the row at fault: the others go on from where they were."""

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from inference.engines.generation import pipeline_stepper
from inference.errors import BadOutput, DeviceFailed, EngineError, OutOfMemory
from tests import decoders
from tests.decoders import ProgressCollector
from tests.inference.engines.generation.test_stepper import GREEDY, StepperTestCase, alone

PROMPTS = ["a", "hello", "hello you there", "bcd", "how is it", "ok then", "z" * 30]
GIVEN = {**GREEDY, "max_new_tokens": 16}
NO_MEMORY = RuntimeError("DefaultCPUAllocator: can't allocate memory")


def setUpModule() -> None:
    gc.freeze()  # where memory is short garbage is looked for, and not in all that was ever imported


def tearDownModule() -> None:
    gc.unfreeze()


@contextmanager
def forwards(engine: Any, spoil: Callable[[torch.Tensor, torch.Tensor], None]) -> Iterator[None]:
    """`spoil` sees the tokens and the scores of each forward, and may raise or write."""
    model = engine.pipe.model
    forward = model.forward

    def run(**named: Any) -> Any:
        output = forward(**named)
        spoil(named["input_ids"], output.logits)
        return output

    run.__signature__ = __import__("inspect").signature(forward)  # type: ignore[attr-defined]
    with patch.object(model, "forward", run):
        yield


class FailureTests(StepperTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.engine = decoders.engine("Llama")
        self.expected = {prompt: alone(self.engine, prompt, **GIVEN) for prompt in PROMPTS}

    def answers(self, *prompts: str, before: int = 0, **given: Any) -> dict[Any, Any]:
        collector = ProgressCollector(self.engine.stepper)
        for prompt in prompts or PROMPTS:
            self.engine.stepper.join(prompt, prompt, {**GIVEN, **given}, seed=0)
            for _ in range(before):
                collector.step()
        self.addCleanup(lambda: [self.engine.stepper.leave(prompt) for prompt in PROMPTS])
        return collector.all().answers

    def test_a_prompt_whose_scores_are_no_numbers_fails_alone(self) -> None:
        def spoil(tokens: torch.Tensor, scores: torch.Tensor) -> None:
            for row, column in (tokens == ord("k") - ord("!")).nonzero().tolist():
                if scores.shape[1] > 1:
                    scores[row, column] = float("nan")

        with forwards(self.engine, spoil):
            answers = self.answers(prompt_logprobs=1)
        self.assertIsInstance(answers.pop("ok then"), BadOutput)
        for prompt, [answer] in answers.items():
            self.assertEqual(len(answer.pop("details")["prefill"]), len(prompt))
        self.assert_others_are_right({**answers, "ok then": None}, "ok then")

    def assert_others_are_right(self, answers: dict[Any, Any], *culprits: str) -> None:
        self.assertEqual(answers.keys(), set(PROMPTS))
        for prompt in set(PROMPTS) - set(culprits):
            self.assertEqual(answers[prompt], self.expected[prompt], prompt)

    def test_a_prompt_that_raises_fails_alone(self) -> None:
        def spoil(tokens: torch.Tensor, scores: torch.Tensor) -> None:
            if (tokens == ord("k") - ord("!")).any():
                raise ValueError("poison")

        with forwards(self.engine, spoil):
            answers = self.answers()
        self.assertIsInstance(answers["ok then"], EngineError)
        self.assertIn("poison", answers["ok then"].raised)
        self.assert_others_are_right(answers, "ok then")

    def test_a_row_that_raises_in_the_middle_fails_alone(self) -> None:
        for prompt in ("hello", PROMPTS[-1]):
            seen = {"steps": 0}
            letter = re.findall(r"[ -~]", self.text_of(prompt))[-1]
            [token] = self.engine.pipe.tokenizer.encode(letter)

            def spoil(tokens: torch.Tensor, scores: torch.Tensor, token: int = token, seen: Any = seen) -> None:
                seen["steps"] += 1
                if tokens.shape[1] == 1 and (tokens == token).any():
                    raise IndexError("poison")

            with self.subTest(prompt), forwards(self.engine, spoil):
                answers = self.answers()
                failed = [prompt for prompt, answer in answers.items() if isinstance(answer, EngineError)]
                self.assertIn(prompt, failed)
                self.assert_others_are_right(answers, *failed)

    def text_of(self, prompt: str) -> str:
        return str(self.expected[prompt][0]["generated_text"])

    def test_scores_that_are_no_numbers_fail_their_row_alone(self) -> None:
        for only_steps in (False, True):

            def spoil(tokens: torch.Tensor, scores: torch.Tensor, only_steps: bool = only_steps) -> None:
                if only_steps == (tokens.shape[1] == 1):
                    scores[len(scores) // 2, -1, 7] = float("nan")

            answers = {}
            with self.subTest(only_steps=only_steps), forwards(self.engine, spoil):
                answers = self.answers()
            failed = [prompt for prompt, answer in answers.items() if isinstance(answer, BadOutput)]
            self.assertTrue(failed)
            self.assert_others_are_right(answers, *failed)

    def test_no_number_of_one_row_gets_into_another_that_comes_after_it(self) -> None:
        def spoil(tokens: torch.Tensor, scores: torch.Tensor) -> None:
            cells = self.engine.stepper.cells
            if cells.layers and tokens.shape[1] == 1:
                cells.layers[0].values[0] = float("nan")

        with forwards(self.engine, spoil):
            self.answers("a", before=3)
        self.engine.stepper.join("hello", "hello", GIVEN, seed=0)
        self.assertEqual(ProgressCollector(self.engine.stepper).all().answers["hello"], self.expected["hello"])

    def test_a_beginning_that_is_no_number_fails_nobody_after_its_prompt(self) -> None:
        stepper, begins = self.engine.stepper, "You answer in one word. " * 7
        stepper.join("before", f"{begins}a?", GIVEN, seed=0)
        ProgressCollector(stepper).all()
        with torch.inference_mode():
            for _, values in stepper.prefixes.kept[0].layers:
                values.fill_(float("nan"))
        for prompt in (f"{begins}b?", f"{begins}c?"):
            stepper.join(prompt, prompt, GIVEN, seed=0)
        answers = ProgressCollector(stepper).all().answers
        self.assertIsInstance(answers[f"{begins}b?"], BadOutput)
        self.assertEqual(answers[f"{begins}c?"], self.engine.predict([f"{begins}c?"], GIVEN)[0])

    def test_where_memory_is_short_fewer_rows_run_at_once_and_nobody_fails(self) -> None:
        sizes = []

        def spoil(tokens: torch.Tensor, scores: torch.Tensor) -> None:
            sizes.append(len(tokens))
            if len(tokens) > 2:
                raise NO_MEMORY

        with forwards(self.engine, spoil):
            self.assert_others_are_right(self.answers(before=1))
        self.assertLess(sum(size > 2 for size in sizes), 8)

    def test_prompts_are_scored_once_where_memory_is_short(self) -> None:
        tried = set()

        def spoil(tokens: torch.Tensor, scores: torch.Tensor) -> None:
            shape = tuple(scores.shape[:2])
            if shape[1] > 1 and (shape[0] > 2 or shape not in tried):
                tried.add(shape)
                raise NO_MEMORY

        with patch.object(pipeline_stepper, "PIECE", 20), forwards(self.engine, spoil):
            answers = self.answers(prompt_logprobs=1)
        for prompt, [answer] in answers.items():
            details = answer.pop("details")
            self.assertEqual([token["text"] for token in details["prefill"]], list(prompt))
        self.assert_others_are_right(answers)

    def test_where_no_cells_can_be_made_the_last_rows_wait_for_the_others(self) -> None:
        cells = self.engine.stepper.cells
        move, most = cells.reallocate_cells, {"cells": 2 * 128}

        def tight(slots: int, width: int, *rest: Any) -> Any:
            if slots * width > most["cells"]:
                raise NO_MEMORY
            return move(slots, width, *rest)

        with patch.object(cells, "reallocate_cells", tight), patch.object(pipeline_stepper, "CALM", 4):
            self.assert_others_are_right(self.answers(before=1))

    def test_a_lone_row_that_fits_once_what_is_kept_of_prompts_is_let_go_succeeds(self) -> None:
        stepper, begins = self.engine.stepper, "You answer in one word. " * 7

        def spoil(tokens: torch.Tensor, scores: torch.Tensor) -> None:
            if stepper.prefixes.kept and (tokens.shape[1] == 1) == only_steps:
                raise NO_MEMORY

        for only_steps in (False, True):
            stepper.join("before", f"{begins}a?", GIVEN, seed=0)
            ProgressCollector(stepper).all()
            with self.subTest(only_steps=only_steps), forwards(self.engine, spoil):
                self.assertTrue(stepper.prefixes.kept)
                self.assertEqual(self.answers("hello"), {"hello": self.expected["hello"]})

    def test_a_lone_row_without_cells_is_tried_once_more(self) -> None:
        cells, collector = self.engine.stepper.cells, ProgressCollector(self.engine.stepper)
        for failures, is_answered in ((1, True), (2, False)):
            left = [NO_MEMORY] * failures
            fit = cells.ensure_capacity

            def tight(*given: Any, left: list[RuntimeError] = left, fit: Any = fit, **named: Any) -> None:
                if not named and left:  # as it grows, and not as it is begun
                    raise left.pop()
                fit(*given, **named)

            self.engine.stepper.join("hello", "hello", GIVEN, seed=0)
            with self.subTest(failures), patch.object(cells, "ensure_capacity", tight):
                answer = collector.all().answers.pop("hello")
                self.assertEqual(answer == self.expected["hello"], is_answered)

    def test_a_lone_row_that_never_fits_fails(self) -> None:
        def spoil(tokens: torch.Tensor, scores: torch.Tensor) -> None:
            if tokens.shape[1] == 1:
                raise NO_MEMORY

        with forwards(self.engine, spoil):
            answers = self.answers("a", "hello")
        for answer in answers.values():
            self.assertIsInstance(answer, OutOfMemory)

    def test_a_lost_device_is_nobody_s_fault(self) -> None:
        def spoil(tokens: torch.Tensor, scores: torch.Tensor) -> None:
            raise RuntimeError("CUDA error: device-side assert triggered")

        with forwards(self.engine, spoil), self.assertRaises(DeviceFailed):
            self.answers()
