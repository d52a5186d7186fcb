"""What is killed or stopped in the middle of the work: every accepted job still succeeds, once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from uuid import UUID

import redis
from django.conf import settings

from inference.models import Job, Status
from tests import echo, processes
from tests.conditions import eventually
from tests.e2e.case import StackCase
from tests.faults.engines import CALLS

HELD_ECHO = """
[echo]
engine = "tests.echo:EchoEngine"
max_batch_size = 8
time_limit_s = 180
"""
LIMIT_S = 3.0
HASTY = f"""
[hasty]
engine = "tests.faults.engines:RecordingEcho"
max_batch_size = 8
time_limit_s = {LIMIT_S:g}
"""


def value(number: int) -> dict[str, str]:
    return {"text": f"text {number}", "fail": echo.Fail.HELD}


class TestSurvival(StackCase):
    options = {"models": HELD_ECHO, "environment": {"WORKER_HEARTBEAT_S": "0.5"}}

    def submit(self, count: int) -> list[UUID]:
        return [self.stack.submit(value(number)) for number in range(count)]

    def begun(self) -> list[UUID]:
        """Return jobs of which each replica runs a batch, and others wait."""
        self.hold()
        ids = self.stack.submit_together(value(number) for number in range(40))
        self.all_are_busy()
        return ids

    def assert_each_succeeded(self, ids: list[UUID]) -> None:
        """Terminal states never change, so a job that has its output once has it once and for all."""
        self.stack.release()
        for number, job in enumerate(self.stack.finished(*ids)):
            self.assertEqual(
                (job.status, job.output), (Status.SUCCEEDED, echo.expected(value(number))), job.error_detail
            )

    def test_a_pool_child_is_killed_in_the_middle_of_a_batch(self) -> None:
        ids = self.begun()
        os.kill(self.stack.replica_pids()[0], signal.SIGKILL)
        self.assert_each_succeeded(ids)

    def test_the_process_that_replicas_are_forked_from_is_killed(self) -> None:
        """They live on, and another process forks the next ones."""
        ids = self.begun()
        first, second = self.stack.replica_pids()
        parent = processes.parent(first)
        os.kill(parent, signal.SIGKILL)
        os.kill(first, signal.SIGKILL)
        self.assert_each_succeeded(ids)
        pids = self.stack.replica_pids
        successor = eventually(
            lambda: next(pid for pid in pids() if pid not in (first, second)), "there is a successor"
        )
        self.assertNotIn(processes.parent(successor), (parent, processes.parent(second)))

    def test_the_whole_worker_is_killed_and_started_again(self) -> None:
        ids = self.begun()
        self.stack.children["worker1"].kill()
        self.stack.start_worker("worker1")
        self.assert_each_succeeded(ids)

    def test_a_job_before_its_last_recovery_runs_alone_and_succeeds(self) -> None:
        last = settings.MAX_RECOVERIES - 1
        new = (Job(model="echo", inputs=value(number), recoveries=last) for number in range(3))
        ids = [job.pk for job in self.stack.jobs.bulk_create(new)]
        self.assert_each_succeeded(ids)
        self.assertEqual(set(self.stack.jobs.filter(pk__in=ids).values_list("batch_size", "attempts")), {(1, 1)})

    def test_a_job_accepted_without_a_broker_runs_when_it_is_back(self) -> None:
        self.stack.children["broker"].kill()
        ids = self.submit(3)
        self.assertEqual(self.stack.get(f"/v1/jobs/{ids[0]}").json["status"], "queued")
        self.stack.start_broker()
        self.assert_each_succeeded(ids)

    def test_a_worker_outlives_an_error_that_the_broker_answers_with(self) -> None:
        """Such as that it does not know the script of the fetch, or has no room on its disk."""
        with redis.Redis.from_url(f"unix://{self.stack.socket}") as broker:
            broker.script_flush()
        self.assert_each_succeeded(self.submit(3))
        self.assertIsNone(self.stack.children["worker1"].exit_code)
        self.log_shows("NoScriptError", "it tells of the error")

    def test_the_web_server_stops_and_the_jobs_go_on(self) -> None:
        ids = self.begun()
        self.assertEqual(self.stack.children["web"].stop(), 0)
        self.assert_each_succeeded(ids)
        self.stack.start_web()
        self.stack.ready()


class PauseTests(StackCase):
    """Processes are stopped for longer than a job may take, as by a frozen container or a suspended machine."""

    options = {"models": HASTY, "environment": {"WORKER_HEARTBEAT_S": "0.5"}}

    def engine_calls(self) -> int:
        file = self.stack.folder / CALLS
        return len(file.read_text().splitlines()) if file.exists() else 0

    def pause(self, stop: Callable[[int], None]) -> Job:
        """Have a job at work while `stop` is called with SIGSTOP and then, past its limit, with SIGCONT. Return it."""
        before = self.engine_calls()
        self.hold()
        job_id = self.stack.submit(value(1), model="hasty")
        eventually(lambda: self.engine_calls() > before, "its engine runs", every_s=0.01)
        stop(signal.SIGSTOP)
        try:
            over_at = time.monotonic() + 1.5 * LIMIT_S  # what is stopped does nothing that could be waited for
            eventually(lambda: time.monotonic() > over_at, "its limit is over")
            self.stack.release()
        finally:
            stop(signal.SIGCONT)
        [job] = self.stack.finished(job_id)
        return job

    def assert_succeeded(self, job: Job) -> None:
        self.assertEqual((job.status, job.error_code, job.output), (Status.SUCCEEDED, "", echo.expected(value(1))))

    def test_a_job_outlives_a_pause_of_the_whole_worker(self) -> None:
        worker = self.stack.children["worker1"].pid
        self.assert_succeeded(self.pause(lambda number: os.killpg(worker, number)))

    def test_a_job_outlives_a_pause_of_the_children_alone(self) -> None:
        children = self.stack.replica_pids()

        def stop(number: int) -> None:
            for pid in children:
                os.kill(pid, number)

        self.assert_succeeded(self.pause(stop))
