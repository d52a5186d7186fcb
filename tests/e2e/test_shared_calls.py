"""A bulk whose short batches share calls of the children."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from inference.errors import Crashed
from inference.models import Job, Status
from tests.conditions import eventually
from tests.e2e.case import StackCase
from tests.echo import Fail, expected

MODEL = """
[echo]
engine = "tests.echo:EchoEngine"
max_batch_size = 8
options = { fixed_ms = 1 }
"""
TEXTS = [f"text {number}" for number in range(800)]


class SharedCallsTests(StackCase):
    options = {"models": MODEL}

    def bulk(self, inputs: Sequence[Any]) -> list[UUID]:
        bulk = self.stack.post("/v1/jobs/bulk", {"model": "echo", "inputs": inputs}).json
        return [UUID(job["id"]) for job in bulk["jobs"]]

    def assert_answered(self, jobs: Sequence[Job], texts: Sequence[str] = TEXTS) -> None:
        self.assertEqual([job.output for job in jobs], [expected(text) for text in texts])

    def test_they_are_answered_and_each_engine_call_is_no_larger_than_a_batch(self) -> None:
        jobs = self.stack.finished(*self.bulk(TEXTS))
        self.assert_answered(jobs)
        self.assertEqual({job.attempts for job in jobs}, {1})
        self.assertLessEqual(max(job.batch_size or 0 for job in jobs), 8)
        self.assertLess(len({job.batch for job in jobs}), len(TEXTS) / 8 / 2)

    def test_a_child_that_is_killed_loses_none(self) -> None:
        ids = self.bulk(TEXTS)
        shared = self.stack.jobs.filter(pk__in=ids, status=Status.SUCCEEDED)
        eventually(lambda: shared.count() >= len(TEXTS) / 4, "some have ended", every_s=0.01)
        os.kill(self.stack.replica_pids()[0], signal.SIGKILL)
        self.assert_answered(self.stack.finished(*ids))

    def test_one_that_crashes_its_process_fails_alone(self) -> None:
        crash = {"text": "x", "fail": Fail.CRASH}
        jobs = self.stack.finished(*self.bulk([*TEXTS[:600], crash, *TEXTS[600:]]))
        self.assertEqual(jobs.pop(600).error_code, Crashed.code)
        self.assert_answered(jobs)


class AheadTests(SharedCallsTests):
    """The same of children that have several calls in hand."""

    options = {"models": MODEL, "environment": {"WORK_AHEAD": "1"}}
