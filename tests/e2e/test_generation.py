"""Models that generate step by step: answers wait for nobody, and what is done to one job is done to it alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any
from uuid import UUID

from django.conf import settings

from batch_inference_client import Client
from inference.models import Job, Status, Worker, WorkerState
from tests import words
from tests.conditions import PATIENCE_S, eventually
from tests.e2e.case import StackCase
from tests.echo import Fail
from tools.launcher.supervisor import Child

PARAMETERS = 'parameters = { max_new_tokens = { type = "integer", min = 1, max = 2000 } }'
MODELS = f"""
[words]
engine = "tests.words:WordsEngine"
max_batch_size = 8
max_batch_tokens = 2000
time_limit_s = 180
options = {{ step_ms = 10, capacity = 2000 }}
{PARAMETERS}

[hasty]
engine = "tests.words:WordsEngine"
time_limit_s = 5
options = {{ step_ms = 10 }}
{PARAMETERS}

[story]
task = "text-generation"
engine = "tests.words:WordsEngine"
max_batch_size = 8
time_limit_s = 180
options = {{ step_ms = 10 }}

[brief]
task = "text-generation"
engine = "tests.words:WordsEngine"
time_limit_s = 5
options = {{ step_ms = 10 }}

[echo]
engine = "tests.faults.engines:RecordingEcho"
max_batch_size = 4
time_limit_s = 180
parameters = {{ note = {{ type = "string", max_length = 1000000 }} }}
"""
ADDED = """
[added]
engine = "tests.faults.engines:RecordingEcho"
"""
COUNT = 30  # words


class GenerationTests(StackCase):
    options = {"models": MODELS, "environment": {"WORKER_HEARTBEAT_S": "0.5"}, "replicas": 1}

    def generate(self, value: Any, count: int = COUNT, *, model: str = "words") -> UUID:
        return self.stack.submit(value, model=model, parameters={"max_new_tokens": count})

    def job(self, job_id: UUID) -> Job:
        return self.stack.finished(job_id)[0]

    def worker(self) -> Worker:
        return self.stack.workers.get(pid=self.stack.children["worker1"].pid)

    def held(self, count: int = 1) -> list[UUID]:
        """Return jobs that are being answered until the test releases them."""
        self.hold()
        jobs = [self.generate(f"held {number}") for number in range(count)]
        eventually(lambda: all(map(self.is_running, jobs)), "they run")
        return jobs

    def assert_answered(self, jobs: list[UUID], text: str, count: int = COUNT) -> None:
        """Each has what follows from `text` and its place."""
        found = [job.output for job in self.stack.finished(*jobs)]
        self.assertEqual(found, [words.expected(f"{text} {number}", count) for number in range(len(jobs))])

    # Company

    def test_short_answers_come_beside_a_long_one_with_other_parameters(self) -> None:
        long = self.held()
        for number in range(1, 9):
            answer = self.stack.call(f"text {number}", model="words", parameters={"max_new_tokens": number})
            self.assertEqual((answer.status, answer.json), (200, words.expected(f"text {number}", number)))
        self.assertTrue(self.is_running(long[0]))
        self.stack.release()
        self.assert_answered(long, "held")

    def test_a_list_is_answered_in_order(self) -> None:
        texts = [f"text {number}" for number in range(5)]
        answer = self.stack.call(texts, model="words", parameters={"max_new_tokens": 3})
        self.assertEqual(answer.json, [words.expected(text, 3) for text in texts])

    def test_parameters_may_be_longer_than_a_message(self) -> None:
        answer = self.stack.call("text", parameters={"note": "x" * 900_000})
        self.assertEqual((answer.status, answer.json["echo"]), (200, "text"))

    def test_batches_of_another_model_run_between_the_steps(self) -> None:
        long = self.held()
        for number in range(5):
            self.assertEqual(self.stack.call(f"text {number}").status, 200)
        self.assertTrue(self.is_running(long[0]))
        self.stack.release()
        self.assert_answered(long, "held")

    def test_more_than_there_is_room_for_waits_and_is_answered(self) -> None:
        self.assert_answered([self.generate(f"text {number}") for number in range(40)], "text")

    # Each job has its own cancelling, time limit, refusal and failure

    def test_a_cancelled_job_leaves_and_the_others_go_on(self) -> None:
        cancelled, *others = self.held(3)
        self.stack.post(f"/v1/jobs/{cancelled}/cancel", {})
        self.log_shows(f"job={cancelled} left: cancelled", "it left its batch")
        self.assertTrue(all(map(self.is_running, others)))
        self.stack.release()
        self.assertEqual(
            [job.output for job in self.stack.finished(*others)],
            [words.expected(f"held {number}", COUNT) for number in (1, 2)],
        )

    def test_one_that_can_never_fit_is_refused_with_the_figure(self) -> None:
        long = self.held()
        refused = self.job(self.generate("text", 2000))
        self.assertEqual((refused.status, refused.error_code), (Status.FAILED, "invalid_input"))
        self.assertIn("2001 tokens of the 2000", refused.error_detail)
        self.assertTrue(self.is_running(long[0]))
        self.stack.release()
        self.assert_answered(long, "held")

    def test_one_that_fails_in_a_step_fails_alone(self) -> None:
        others = self.held(3)
        bad = self.generate({"text": "bad", "fail": "exception", "at": 5})
        self.assertEqual(self.job(bad).error_code, "engine_error")
        self.assertTrue(all(map(self.is_running, others)))
        self.stack.release()
        self.assert_answered(others, "held")

    def test_each_has_the_time_limit_for_itself(self) -> None:
        self.hold()
        slow = self.generate("held", model="hasty")
        eventually(lambda: self.is_running(slow), "it runs")
        quick = self.generate("quick", 5, model="hasty")
        self.assertEqual(self.job(quick).output, words.expected("quick", 5))
        late = self.job(slow)
        self.assertEqual((late.status, late.output), (Status.SUCCEEDED, words.expected("held", 1)))

    def test_text_that_a_stream_has_sent_is_kept_at_the_time_limit(self) -> None:
        self.hold()
        client = Client(f"http://127.0.0.1:{self.stack.port}")
        events = list(client.stream("brief", "held", parameters={"max_new_tokens": 200, "details": True}))
        text = words.expected("held", 1)[0]["generated_text"]
        details = {"finish_reason": "length", "generated_tokens": 1}
        self.assertEqual("".join(event.text for event in events), text)
        self.assertEqual((events[-1].job or {})["output"], [{"generated_text": text, "details": details}])

    def test_a_completion_that_ends_at_the_time_limit_says_length(self) -> None:
        self.hold()
        body = {"model": "brief", "messages": [{"role": "user", "content": "held"}], "max_tokens": 200}
        answer = self.stack.post(f"/openai/v1/chat/completions?timeout={PATIENCE_S:g}", body)
        choice = answer.json["choices"][0]
        text = words.expected("held", 1)[0]["generated_text"]
        self.assertEqual((choice["message"]["content"], choice["finish_reason"]), (text, "length"))

    def test_an_input_that_is_read_without_end_times_out_and_costs_its_neighbours_no_life(self) -> None:
        bad = {"text": "bad", "fail": Fail.HANG_GIL, "at": "join"}
        first, hangs, last = self.stack.finished(*self.stack.submit_together(["first", bad, "last"], model="hasty"))
        self.assertEqual((hangs.status, hangs.error_code), (Status.FAILED, "timed_out"))
        for job, text in ((first, "first"), (last, "last")):
            self.assertEqual((job.status, job.output), (Status.SUCCEEDED, words.expected(text, words.NEW_TOKENS)))
            self.assertEqual((job.attempts, job.recoveries), (2, 0))
        self.assertEqual(hangs.recoveries, 0)

    # The end of a process

    def kill_replicas(self) -> None:
        for pid in self.stack.replica_pids():
            os.kill(pid, signal.SIGKILL)

    def test_a_child_that_is_killed_in_the_middle_loses_nothing(self) -> None:
        jobs = self.held(6)
        self.kill_replicas()
        self.stack.release()
        self.assert_answered(jobs, "held")

    def test_one_that_kills_its_process_is_found_and_the_others_answered(self) -> None:
        others = self.held(5)
        bad = self.generate({"text": "bad", "fail": "crash", "at": 5})
        eventually(lambda: self.stack.jobs.get(pk=bad).attempts, "it has begun")
        self.stack.release()
        self.assert_answered(others, "held")
        self.assertEqual(self.job(bad).error_code, "crashed")

    def test_a_worker_that_is_stopped_answers_what_it_has_begun(self) -> None:
        """Also what waits for its turn beside a batch of another model."""
        long = self.held()
        beside = self.stack.submit({"fail": Fail.HELD})
        eventually(lambda: self.is_running(beside), "another model has its turn")
        worker = self.stack.children["worker1"]
        worker.terminate()
        eventually(lambda: self.stack.workers.filter(pid=worker.pid, state=WorkerState.STOPPING), "it is told to stop")
        self.stack.release()
        eventually(lambda: worker.exit_code is not None, "the worker has ended")
        self.assertEqual({job.attempts for job in self.stack.finished(*long, beside)}, {1})
        self.assert_answered(long, "held")
        self.stack.start_worker()
        self.stack.ready()

    def held_of_two_models(self) -> list[UUID]:
        """Return jobs of two batches that are open in one child until the test releases them."""
        jobs = [*self.held(), self.generate("held 1", model="story")]
        eventually(lambda: all(map(self.is_running, jobs)), "they run")
        return jobs

    def assert_ended_by(self, worker: Child, jobs: list[UUID]) -> None:
        """No other worker has gone on with them."""
        eventually(lambda: worker.exit_code is not None, "the worker has ended")
        ended = self.stack.jobs.filter(pk__in=jobs).values_list("status", "attempts")
        self.assertEqual(set(ended), {(Status.SUCCEEDED, 1)})

    def test_so_does_one_that_celery_s_own_command_stops(self) -> None:
        jobs, worker = self.held_of_two_models(), self.stack.children["worker1"]
        subprocess.run(
            [sys.executable, "-m", "celery", "-A", "project", "control", "shutdown"],
            env={**os.environ, **self.stack.environment},
            cwd=settings.BASE_DIR,
            capture_output=True,
            check=False,
        )
        self.log_shows("Got shutdown from remote", "it is told to stop")
        self.stack.release()
        self.assert_ended_by(worker, jobs)

    def test_so_does_one_that_is_stopped_while_the_broker_is_away(self) -> None:
        jobs, worker = self.held_of_two_models(), self.stack.children["worker1"]
        self.stack.children["broker"].kill()
        self.log_shows("Trying to re-establish the connection", "it has noticed")
        worker.terminate()
        eventually(lambda: self.stack.workers.filter(pid=worker.pid, state=WorkerState.STOPPING), "it is told to stop")
        self.stack.release()
        self.assert_ended_by(worker, jobs)

    def test_a_model_is_added_while_answers_are_generated_without_a_pause(self) -> None:
        self.addCleanup(self.stack.models_file.write_text, MODELS)
        first = self.held()
        self.stack.models_file.write_text(f"{MODELS}{ADDED}")
        eventually(lambda: any(entry.name == "added" for entry in self.worker().catalog.models), "it is found")
        self.hold("held-next")
        following = self.generate("held-next")
        eventually(lambda: self.worker().held or self.is_running(following), "it waits for the load, or joins")
        for number in range(2):  # the batch has had a turn to let it in
            self.assertEqual(self.stack.call(f"between {number}").status, 200)
        self.assertFalse(self.is_running(following))
        self.stack.release()
        eventually(lambda: self.stack.call("x", model="added").status == 200, "it is loaded", every_s=0.5)
        self.stack.release("held-next")
        done = self.stack.finished(*first, following)
        self.assertEqual({(job.status, job.attempts) for job in done}, {(Status.SUCCEEDED, 1)})

    def test_text_comes_as_it_is_generated_and_goes_on_after_a_kill(self) -> None:
        self.hold()
        client = Client(f"http://127.0.0.1:{self.stack.port}")
        events = client.stream("story", "held", parameters={"max_new_tokens": 200})
        first = next(events)
        text = words.expected("held", 200)[0]["generated_text"]
        self.assertEqual(first.text, words.word("held", 0))
        self.kill_replicas()
        self.stack.release()
        rest = list(events)
        self.assertEqual((first.text + "".join(event.text for event in rest), rest[-1].kind), (text, "end"))
