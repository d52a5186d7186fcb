"""Errors of the client are the same in another process: a pool's parent, or who asks Celery for a task's result."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any
from unittest import TestCase

from celery import Celery

from batch_inference_client import ClientError, JobError
from tests.batch_inference_client.resume import ROOT

FULL = ClientError("It is full.", code="queue_full", passing=True, retry_after_s=7.0, problem={"request_id": "r1"})
LOST = JobError("It was lost.", code="lost", job_id="01a1fe16-7155-735a-8526-dcb6495b5837", retryable=True)
PICKLED = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from batch_inference_client import JobError

def lose():
    raise JobError("It was lost.", code="lost", job_id="01a1fe16-7155-735a-8526-dcb6495b5837", retryable=True)

with ProcessPoolExecutor(1, get_context("fork")) as pool:
    error = pool.submit(lose).exception()
print(type(error).__name__, error, error.job_id, error.retryable)
"""


def describe(error: Exception) -> tuple[Any, ...]:
    """Return all that somebody reads of it."""
    return type(error), str(error), vars(error), getattr(error, "job_id", None)


class AnotherProcessTests(TestCase):
    def test_an_error_is_the_same_to_who_started_the_process_that_raised_it(self) -> None:
        """In an interpreter of its own: with tblib, which the tests have, any exception would be."""
        run = subprocess.run([sys.executable, "-c", PICKLED], cwd=ROOT, capture_output=True, text=True, check=False)
        self.assertEqual(run.stdout, f"JobError It was lost. [lost] {LOST.job_id} True\n", run.stderr)

    def test_an_error_of_a_task_is_the_same_to_the_reader_of_its_result(self) -> None:
        with Celery("theirs", backend="cache+memory://", set_as_current=False) as app:
            for error in (FULL, LOST):
                stored = json.loads(json.dumps(app.backend.prepare_exception(error, serializer="json")))
                self.assertEqual(describe(app.backend.exception_to_python(stored)), describe(error))
