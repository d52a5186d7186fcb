"""Lists larger than a batch, on two workers of two replicas: in order, with the first error, whatever is killed."""

from __future__ import annotations

import os
import signal
from typing import Any
from uuid import UUID

from inference.models import Status
from tests import echo
from tests.conditions import eventually
from tests.e2e.case import StackCase

MODELS = """
[echo]
engine = "tests.echo:EchoEngine"
max_batch_size = 4
time_limit_s = 30
options = { fixed_ms = 200 }
"""
TEXTS = [f"text {number}" for number in range(62)]  # in 16 parts
EXPECTED = [echo.expected(text) for text in TEXTS]
MIDDLE = 30


def with_a(fail: str) -> list[Any]:
    """The list with an input in its middle that misbehaves so."""
    return [*TEXTS[:MIDDLE], {"text": "bad", "fail": fail}, *TEXTS[MIDDLE + 1 :]]


class LongListTests(StackCase):
    options = {
        "models": MODELS, "workers": 2, "environment": {"WORKER_SILENT_S": "4", "WORKER_HEARTBEAT_S": "0.5"},
    }  # fmt: skip

    def parts(self, whole: UUID) -> list[tuple[str, UUID | None]]:
        """(status, worker), in order."""
        return list(self.stack.jobs.filter(whole=whole).order_by("place").values_list("status", "worker"))

    def first_parts_are_done(self, whole: UUID) -> bool:
        statuses = [status for status, _ in self.parts(whole)]
        return Status.SUCCEEDED in statuses and Status.QUEUED in statuses

    def output(self, whole: UUID) -> Any:
        answer = self.stack.get(f"/v1/jobs/{whole}/output?wait=60", timeout_s=90)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json

    def test_several_replicas_of_both_workers_run_it_and_the_answer_is_in_order(self) -> None:
        answer = self.stack.post("/v1/models/echo?timeout=60", {"inputs": TEXTS})
        self.assertEqual((answer.status, answer.json), (200, EXPECTED))
        (whole,) = self.stack.jobs.filter(parts=16).order_by("-pk")[:1]
        both = {self.stack.workers.get(pid=self.stack.children[name].pid).pk for name in self.stack.worker_names}
        self.assertEqual({worker for _, worker in self.parts(whole.pk)}, both)
        alone = [self.stack.post("/v1/models/echo", {"inputs": text}).json for text in TEXTS[:3]]
        self.assertEqual(answer.json[:3], alone)

    def test_its_error_is_that_of_the_bad_input(self) -> None:
        for fail, code in (("exception", "engine_error"), ("invalid", "invalid_input")):
            with self.subTest(fail):
                whole = self.stack.submit(with_a(fail))
                (job,) = self.stack.finished(whole)
                self.assertEqual((job.status, job.error_code), (Status.FAILED, code))
                self.assertTrue(job.error_detail.startswith(f"inputs[{MIDDLE}]: "), job.error_detail)

    def test_an_input_that_kills_its_process_ends_its_own_job_only(self) -> None:
        bad, good = self.stack.submit(with_a("crash")), self.stack.submit(TEXTS)
        (job,) = self.stack.finished(bad)
        self.assertEqual((job.status, job.error_code), (Status.FAILED, "crashed"))
        self.assertTrue(job.error_detail.startswith("inputs[28] to inputs[31]: "), job.error_detail)
        self.assertEqual(self.output(good), EXPECTED)

    def test_cancelled_in_the_middle_it_stops(self) -> None:
        whole = self.stack.submit(TEXTS * 4)
        eventually(lambda: self.first_parts_are_done(whole), "it has begun")
        answer = self.stack.request("POST", f"/v1/jobs/{whole}/cancel")
        self.assertEqual((answer.json["status"], answer.json["was_running"]), ("cancelled", True))
        waiting = {Status.QUEUED, Status.RUNNING}
        eventually(lambda: not waiting & {status for status, _ in self.parts(whole)}, "no part of it is left")
        self.assertIn(Status.CANCELLED, {status for status, _ in self.parts(whole)})
        self.assertEqual(self.stack.get(f"/v1/jobs/{whole}").json["status"], "cancelled")

    def test_a_child_is_killed_in_the_middle(self) -> None:
        whole = self.stack.submit(TEXTS)
        eventually(lambda: self.first_parts_are_done(whole), "it has begun")
        os.kill(self.stack.replica_pids()[0], signal.SIGKILL)
        self.assertEqual(self.output(whole), EXPECTED)

    def test_a_worker_is_killed_in_the_middle(self) -> None:
        whole = self.stack.submit(TEXTS)
        eventually(lambda: self.first_parts_are_done(whole), "it has begun")
        self.stack.children["worker2"].kill()
        self.assertEqual(self.output(whole), EXPECTED)
        self.stack.start_worker("worker2")
        self.stack.ready()
