"""Lists larger than a batch, on two workers of two replicas: in order, with the first error, whatever is killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any
from uuid import UUID

from inference.models import Status
from tests import echo
from tests.conditions import PATIENCE_S, eventually
from tests.e2e.case import StackCase

MODELS = """
[echo]
engine = "tests.echo:EchoEngine"
max_batch_size = 4
time_limit_s = 180
"""
TEXTS = [f"text {number}" for number in range(94)]  # in 24 parts
MIDDLE = 30
HELD = [*TEXTS[:MIDDLE], *({"text": text, "fail": echo.Fail.HELD} for text in TEXTS[MIDDLE:])]


def with_a(fail: str) -> list[Any]:
    """The list with an input in its middle that misbehaves so."""
    return [*TEXTS[:MIDDLE], {"text": "bad", "fail": fail}, *TEXTS[MIDDLE + 1 :]]


class LongListTests(StackCase):
    options = {
        "models": MODELS, "workers": 2, "environment": {"WORKER_HEARTBEAT_S": "0.5"},
    }  # fmt: skip

    def parts(self, whole: UUID) -> list[tuple[str, UUID | None]]:
        """(status, worker), in order."""
        return list(self.stack.jobs.filter(whole=whole).order_by("place").values_list("status", "worker"))

    def begun(self, inputs: list[Any] = HELD) -> UUID:
        """Submit a list, and return once the replicas of both workers run parts of it."""
        self.hold()
        whole = self.stack.submit(inputs)
        both = {self.stack.workers.get(pid=self.stack.children[name].pid).pk for name in self.stack.worker_names}

        def is_begun() -> bool:
            running = [worker for status, worker in self.parts(whole) if status == Status.RUNNING]
            return len(running) >= 4 and set(running) == both

        eventually(is_begun, "both run parts of it")
        return whole

    def assert_answered(self, whole: UUID, inputs: list[Any] = HELD) -> None:
        self.stack.release()
        answer = self.stack.get(f"/v1/jobs/{whole}/output?wait={PATIENCE_S:g}", timeout_s=2 * PATIENCE_S)
        self.assertEqual((answer.status, answer.json), (200, [echo.expected(value) for value in inputs]))

    def test_several_replicas_of_both_workers_run_it_and_the_answer_is_in_order(self) -> None:
        self.assert_answered(self.begun())
        answer = self.stack.call(TEXTS)
        self.assertEqual((answer.status, answer.json), (200, [echo.expected(text) for text in TEXTS]))
        self.assertEqual(answer.json[:3], [self.stack.call(text).json for text in TEXTS[:3]])

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
        self.assert_answered(good, TEXTS)

    def test_cancelled_in_the_middle_it_stops(self) -> None:
        whole = self.begun(HELD + HELD[MIDDLE:])
        answer = self.stack.request("POST", f"/v1/jobs/{whole}/cancel")
        self.assertEqual((answer.json["status"], answer.json["was_running"]), ("cancelled", True))
        self.stack.release()
        waiting = {Status.QUEUED, Status.RUNNING}
        eventually(lambda: not waiting & {status for status, _ in self.parts(whole)}, "no part of it is left")
        statuses = Counter(status for status, _ in self.parts(whole))
        self.assertGreater(statuses[Status.CANCELLED], 4, "those that ran, and those that waited")
        self.assertEqual(self.stack.get(f"/v1/jobs/{whole}").json["status"], "cancelled")

    def test_a_child_is_killed_in_the_middle(self) -> None:
        whole = self.begun()
        os.kill(self.stack.replica_pids()[0], signal.SIGKILL)
        self.assert_answered(whole)

    def test_a_worker_is_killed_in_the_middle(self) -> None:
        whole = self.begun()
        self.stack.children["worker2"].kill()
        self.assert_answered(whole)
        self.stack.start_worker("worker2")
        self.stack.ready()
