"""A replica that has three batches in hand: one is computed, two are claimed."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from uuid import UUID

from inference.errors import TimedOut
from inference.models import Job, Status
from tests import tiny_models
from tests.conditions import eventually
from tests.e2e.case import StackCase
from tests.echo import Fail, expected
from tests.faults.engines import READING
from tests.stack import Stack

MODEL = """
[{name}]
engine = "tests.echo:EchoEngine"
max_batch_size = 4
time_limit_s = 180
"""
READ = """
[read]
engine = "tests.faults.engines:ReadsAhead"
max_batch_size = 1
time_limit_s = 10
"""
TINY = """
[tiny]
task = "text-classification"
model = "{folder}"
max_batch_size = 4
"""
INPUTS = [{"text": f"text {number}", "fail": Fail.HELD} for number in range(13)]
NEW = ("killed", "cancelled", "stopped")  # once it is known that its calls are long, a model has two batches in hand


class WorkAheadTests(StackCase):
    options = {
        "models": "".join(MODEL.format(name=name) for name in NEW) + READ,
        "replicas": 1,
        "environment": {"WORK_AHEAD": "1"},
    }

    def three_batches(self, model: str) -> list[UUID]:
        """Return jobs that are all claimed, while the first batch is computed until it is released."""
        self.hold()
        ids = self.stack.submit_together(INPUTS, model=model)
        claimed = self.stack.jobs.filter(pk__in=ids, status=Status.RUNNING)
        eventually(lambda: claimed.values("batch").distinct().count() == 3, "three batches are claimed")
        return ids

    def test_the_child_that_has_them_dies(self) -> None:
        ids = self.three_batches("killed")
        os.kill(self.stack.replica_pids()[0], signal.SIGKILL)
        self.stack.release()
        jobs = self.stack.finished(*ids)
        self.assertEqual([job.output for job in jobs], [expected(value) for value in INPUTS])

    def beside_one_that_hangs_as_it_is_read(self, how: Fail) -> Job:
        """What became of the job that was computed meanwhile."""
        (self.stack.folder / READING).unlink(missing_ok=True)
        self.hold()
        first = self.stack.submit({"text": "a", "fail": Fail.HELD}, model="read")
        eventually(lambda: self.is_running(first), "it is computed")
        hangs = self.stack.submit({"text": "b", "fail": how}, model="read")
        eventually((self.stack.folder / READING).exists, "it is read")
        self.stack.release()
        computed, read = self.stack.finished(first, hangs)
        self.assertEqual((computed.status, read.error_code), (Status.SUCCEEDED, TimedOut.code))
        return computed

    def test_one_that_hangs_as_it_is_read_fails_and_takes_nothing_of_the_other_s_time(self) -> None:
        self.assertEqual(self.beside_one_that_hangs_as_it_is_read(Fail.HANG_SLEEP).attempts, 1)

    def test_one_that_holds_the_interpreter_as_it_is_read_fails_and_the_other_succeeds(self) -> None:
        self.assertEqual(self.beside_one_that_hangs_as_it_is_read(Fail.HANG_GIL).attempts, 2)

    def test_one_of_them_is_cancelled(self) -> None:
        ids = self.three_batches("cancelled")
        self.assertEqual(self.stack.post(f"/v1/jobs/{ids[8]}/cancel", {}).status, 200)
        self.stack.release()
        jobs = self.stack.finished(*ids)
        self.assertEqual([job.status for job in jobs].count(Status.SUCCEEDED), 12)
        self.assertEqual(jobs[8].status, Status.CANCELLED)

    def test_a_worker_that_is_stopped_ends_all_of_them(self) -> None:
        ids = self.three_batches("stopped")
        begun = list(self.stack.jobs.filter(pk__in=ids, status=Status.RUNNING).values_list("pk", flat=True))
        self.stack.children["worker1"].terminate()
        self.stack.release()
        self.assertEqual(self.stack.children["worker1"].stop(), 0)
        done = self.stack.jobs.filter(pk__in=begun, status=Status.SUCCEEDED, attempts=1)
        self.assertEqual(done.count(), len(begun))
        self.stack.start_worker()
        self.stack.ready()
        self.assertEqual({job.status for job in self.stack.finished(*ids)}, {Status.SUCCEEDED})


class TokenizedAheadTests(StackCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tiny_models.build("text-classification", Path(cls.enterClassContext(tempfile.TemporaryDirectory())))
        models = TINY.format(folder=folder)
        cls.stack = cls.enterClassContext(Stack(models=models, replicas=1, environment={"WORK_AHEAD": "1"}))

    def test_answers_are_those_of_each_input_alone(self) -> None:
        texts = [" ".join(tiny_models.WORDS[: 1 + number % 9]) for number in range(60)]
        together = self.stack.finished(*self.stack.submit_together(texts, model="tiny"))
        alone = {text: self.stack.finished(self.stack.submit(text, model="tiny"))[0].output for text in {*texts}}
        for text, job in zip(texts, together, strict=True):
            self.assertEqual(
                [prediction["label"] for prediction in job.output], [prediction["label"] for prediction in alone[text]]
            )
            self.assertAlmostEqual(job.output[0]["score"], alone[text][0]["score"], places=4)
        self.assertLess(len({job.batch for job in together}), len(texts))
