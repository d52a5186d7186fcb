"""Which input of the client's list an error names, whatever part it ran in."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any
from unittest import TestCase
from unittest.mock import patch
from uuid import uuid4

from inference import errors
from inference.catalog.sizes import lengths
from inference.catalog.specs import ModelSpec
from inference.engines.runtime import json_values
from inference.store.transitions import Claimed
from inference.worker.child.outcome_builder import make_condemned_outcome, make_outcome

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = ModelSpec(name="m", engine="x:Y", max_batch_size=2)
GENERATOR = ModelSpec(name="m", engine="x:Y", task="text-generation")
TO_GO_ON = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "All"}]


def claimed(inputs: Any, **values: Any) -> Claimed:
    return Claimed(
        **{
            "id": uuid4(),
            "model": "m",
            "inputs": inputs,
            "parameters": {},
            "size": 2,
            "length": 1,
            "whole": None,
            "created_at": MOMENT,
            "started_at": MOMENT,
            "place": None,
            **values,
        }
    )


def part(*inputs: Any, place: int = 32) -> Claimed:
    return claimed(list(inputs), whole=uuid4(), place=place)


class OutcomeTests(TestCase):
    def test_an_error_names_the_input_by_its_place_in_the_client_s_list(self) -> None:
        answers = ["good", errors.InvalidInput("no")]
        for job, where in ((part("a", "b"), "inputs[33]: "), (claimed(["a", "b"]), "inputs[1]: ")):
            self.assertEqual(make_outcome(SPEC, job, answers).error_detail, f"{where}no")
        self.assertEqual(make_outcome(SPEC, claimed("a"), answers[1:]).error_detail, "no")

    def test_an_error_of_the_parameters_names_no_input(self) -> None:
        wrong = errors.InvalidInput("parameters.dimensions: leave it out")
        self.assertEqual(make_outcome(SPEC, part("a", "b"), [wrong, wrong]).error_detail, wrong.message)

    def test_the_log_names_the_job_that_the_client_knows(self) -> None:
        job = part("a", "b")
        with self.assertLogs("inference.worker.child.outcome_builder", "WARNING") as logged:
            make_outcome(SPEC, job, ["good", errors.EngineError("no")])
        self.assertIn(f"job={job.whole} model=m engine_error: inputs[33]: …", logged.output[0])

    def test_a_condemned_part_says_where_it_lies(self) -> None:
        self.assertRegex(
            make_condemned_outcome(part("a", "b"), "crashed").error_detail,
            r"^inputs\[32\] to inputs\[33\]: The process",
        )
        self.assertRegex(make_condemned_outcome(part("a"), "crashed").error_detail, r"^inputs\[32\]: The process")
        self.assertRegex(make_condemned_outcome(claimed(["a", "b"]), "crashed").error_detail, "^The process")
        self.assertRegex(make_condemned_outcome(claimed(7), "crashed").error_detail, "^The process")

    def test_of_one_that_its_call_raised_with_operators_read_what_and_where(self) -> None:
        outcome = make_condemned_outcome(claimed("a"), "failed", "a secret", "here")
        self.assertEqual((outcome.error_raised, outcome.error_trace), ("a secret", "here"))
        self.assertNotIn("secret", outcome.error_detail)

    def test_the_prompt_is_what_an_answer_with_the_full_text_begins_with(self) -> None:
        cases: tuple[tuple[Any, dict[str, Any], str], ...] = (
            ("All", {}, "All"),
            ("All", {"return_full_text": True}, "All"),
            ("All", {"return_full_text": False}, ""),
            (TO_GO_ON, {}, "All"),
            (TO_GO_ON, {"continue_final_message": True}, "All"),
            (TO_GO_ON, {"continue_final_message": False}, ""),
            (TO_GO_ON[:1], {}, ""),
            ({"All": 1}, {}, ""),
        )
        for inputs, parameters, prompt in cases:
            job = claimed(inputs, parameters=parameters)
            with self.subTest(inputs=inputs, parameters=parameters):
                outcome = make_outcome(GENERATOR, job, [{"generated_text": "All right then"}], full_text=True)
                self.assertEqual(outcome.prompt_length, len(prompt))

    def test_each_value_of_a_list_counts_whatever_the_first_is(self) -> None:
        text = "x" * 240
        for answer, numbers in (([0.5, text], 13), ([text, 0.5], 13), ([0.5, [0.5] * 9], 11), ([0.5, 0.5], 2)):
            self.assertEqual(json_values.estimate_size_in_numbers(answer), numbers)

    def test_a_list_of_2048_texts_may_have_vectors_of_4096_numbers(self) -> None:
        vector = base64.b64encode(bytes(4096 * 4)).decode()
        answer = [{"embedding": vector, "tokens": 512}] * 2048
        self.assertLessEqual(json_values.estimate_size_in_numbers(answer), lengths.MOST_ANSWERED)

    def test_a_part_says_how_much_it_answered_as_the_whole_has_the_bound(self) -> None:
        answers = [[0.5] * 3, [0.5] * 4]
        self.assertEqual(make_outcome(SPEC, part("a", "b"), answers).output_size, 8)
        self.assertIsNone(make_outcome(SPEC, claimed(["a", "b"]), answers).output_size)
        with patch.object(lengths, "MOST_ANSWERED", 7):
            self.assertEqual(make_outcome(SPEC, part("a", "b"), answers).error_code, "invalid_input")

    def test_an_answer_that_is_too_large_is_the_fault_of_the_input_but_for_an_engine_of_one_s_own(self) -> None:
        pipeline = ModelSpec(name="m", task="depth-estimation", model="m")
        with patch.object(lengths, "MOST_ANSWERED", 2):
            for spec, inputs, code in ((pipeline, "a", "invalid_input"), (SPEC, "a", "bad_output"),
                                       (SPEC, ["a"], "invalid_input")):  # fmt: skip
                with self.subTest(engine=spec.engine, inputs=inputs):
                    self.assertEqual(make_outcome(spec, claimed(inputs), [[0.5] * 3]).error_code, code)
