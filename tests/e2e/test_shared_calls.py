"""A bulk whose short batches share calls of the children."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

from inference.errors import Crashed
from inference.models import Job
from tests.conditions import eventually
from tests.e2e.case import StackCase
from tests.echo import Fail, expected
from tests.faults.engines import CALLS

MODEL = """
[echo]
engine = "tests.faults.engines:RecordingEcho"
max_batch_size = 8
time_limit_s = 180
options = { fixed_ms = 1 }
"""
TEXTS = [f"text {number}" for number in range(800)]


class SharedCallsTests(StackCase):
    options = {"models": MODEL}

    def assert_answered(self, jobs: Sequence[Job], inputs: Sequence[Any] = TEXTS) -> None:
        self.assertEqual([job.output for job in jobs], [expected(value) for value in inputs])

    def engine_calls(self) -> int:
        file = self.stack.folder / CALLS
        return len(file.read_bytes().splitlines()) if file.exists() else 0

    def test_they_are_answered_and_each_engine_call_is_no_larger_than_a_batch(self) -> None:
        before = self.engine_calls()
        jobs = self.stack.finished(*self.stack.submit_together(TEXTS))
        self.assert_answered(jobs)
        self.assertEqual({job.attempts for job in jobs}, {1})
        self.assertLessEqual(max(job.batch_size or 0 for job in jobs), 8)
        self.assertLess(len({job.batch for job in jobs}), self.engine_calls() - before)

    def test_children_that_are_killed_lose_none(self) -> None:
        inputs = [*TEXTS[:400], {"text": "x", "fail": Fail.HELD}, *TEXTS[400:]]
        self.hold()
        ids = self.stack.submit_together(inputs)
        eventually(lambda: self.is_running(ids[400]), "its middle is reached")
        for pid in self.stack.replica_pids():
            os.kill(pid, signal.SIGKILL)
        self.stack.release()
        self.assert_answered(self.stack.finished(*ids), inputs)

    def test_one_that_crashes_its_process_fails_alone(self) -> None:
        crash = {"text": "x", "fail": Fail.CRASH}
        jobs = self.stack.finished(*self.stack.submit_together([*TEXTS[:600], crash, *TEXTS[600:]]))
        self.assertEqual(jobs.pop(600).error_code, Crashed.code)
        self.assert_answered(jobs)


class AheadTests(SharedCallsTests):
    """The same of children that have several calls in hand."""

    options = {"models": MODEL, "environment": {"WORK_AHEAD": "1"}}
