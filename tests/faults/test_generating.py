"""What is said of streams must be able to fail."""

from __future__ import annotations

import unittest
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch
from uuid import uuid4

from inference.models import Job
from tests import words
from tests.faults.company import InCompany
from tests.faults.generating import ChildKilled, Reader
from tests.faults.hour import Course
from tests.faults.trial import Trial

INPUTS = "a text of 9 words"
TEXT = words.expected(INPUTS, 9)[0]["generated_text"]


class CompareTests(unittest.TestCase):
    def problems(self, text: str, *, status: str = "succeeded", restarts: int = 0, has_ended: bool = True) -> list[str]:
        with patch.object(Trial, "__init__", return_value=None):
            trial = Trial()  # type: ignore[call-arg]
        job_id = uuid4()
        trial.accepted, trial.problems = {job_id: INPUTS}, []
        job: Any = {"status": status} if has_ended else None
        reader = SimpleNamespace(job_id=job_id, text=text, restarts=restarts, job=job)
        ChildKilled(quick=True).compare(trial, cast("Reader", reader))
        return trial.problems

    def test_the_whole_text_is_right_and_of_a_cancelled_job_its_beginning(self) -> None:
        self.assertEqual((self.problems(TEXT), self.problems(TEXT[:20], status="cancelled")), ([], []))

    def test_a_character_too_few_or_too_many_is_seen(self) -> None:
        for text in (TEXT[:-1], TEXT[1:], TEXT[:20] + TEXT[19:], ""):
            with self.subTest(text):
                self.assertEqual(len(self.problems(text)), 1)

    def test_other_text_of_a_cancelled_job_is_seen(self) -> None:
        self.assertEqual(len(self.problems("other", status="cancelled")), 1)

    def test_a_stream_without_an_end_and_one_that_began_anew_are_seen(self) -> None:
        self.assertEqual((len(self.problems(TEXT, has_ended=False)), len(self.problems(TEXT, restarts=1))), (1, 1))


class CompareRowTests(unittest.TestCase):
    def test_an_answer_that_is_not_that_of_the_reference_is_seen(self) -> None:
        fault, job = InCompany(quick=True), Job(output=[{"generated_text": "one two"}])
        for text, problems in (("one two", 0), ("one two three", 1), ("one", 1)):
            with self.subTest(text), patch.object(Trial, "__init__", return_value=None):
                trial = Trial()  # type: ignore[call-arg]
                trial.problems = []
                with patch.object(fault, "expected", return_value=text):
                    fault.compare_row(trial, job)
                self.assertEqual(len(trial.problems), problems)


class CourseTests(unittest.TestCase):
    def grown(self, *values: float) -> list[str]:
        course = Course()
        for value in values:
            course.take({"web": value})
        return course.grown()

    def test_what_is_higher_at_the_end_than_after_warming_up_has_grown(self) -> None:
        self.assertEqual(self.grown(50, 100, 100, 100, 100, 108), [])
        self.assertEqual(self.grown(50, 100, 120, 130, 140, 110), ["web grew from 100.0 to 110.0 MiB"])
