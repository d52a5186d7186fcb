"""Models that generate step by step: answers wait for nobody, and what is done to one job is done to it alone."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from inference.client import Client
from inference.models import Job, Status
from tests import words
from tests.conditions import eventually
from tests.e2e.case import StackCase
from tests.e2e.test_replicas import QUICK

PARAMETERS = 'parameters = { max_new_tokens = { type = "integer", min = 1, max = 2000 } }'
MODELS = f"""
[words]
engine = "tests.words:WordsEngine"
max_batch_size = 8
max_batch_tokens = 2000
time_limit_s = 20
options = {{ step_ms = 10, capacity = 2000 }}
{PARAMETERS}

[hasty]
engine = "tests.words:WordsEngine"
time_limit_s = 1
options = {{ step_ms = 10 }}
{PARAMETERS}

[story]
task = "text-generation"
engine = "tests.words:WordsEngine"
max_batch_size = 8
options = {{ step_ms = 10 }}

[echo]
engine = "tests.faults.engines:RecordingEcho"
max_batch_size = 4
"""
ADDED = """
[added]
engine = "tests.faults.engines:RecordingEcho"
"""
LONG = 1000  # words: 10 s


class GenerationCase(StackCase):
    options = {"models": MODELS, "environment": QUICK, "replicas": 1}

    def generate(self, value: Any, words: int, *, model: str = "words") -> Any:
        return self.stack.submit(value, model=model, parameters={"max_new_tokens": words})

    def job(self, job_id: Any) -> Job:
        return self.stack.finished(job_id)[0]

    def is_running(self, job_id: Any) -> bool:
        return bool(self.stack.get(f"/v1/jobs/{job_id}").json["status"] == Status.RUNNING)

    def long(self) -> Any:
        """One that is being answered for long."""
        job_id = self.generate("long", LONG)
        eventually(lambda: self.is_running(job_id), "it runs")
        return job_id


class CompanyTests(GenerationCase):
    def test_short_answers_come_beside_a_long_one_with_other_parameters(self) -> None:
        long = self.long()
        for number in range(1, 9):
            answer = self.stack.post(
                "/v1/models/words", {"inputs": f"text {number}", "parameters": {"max_new_tokens": number}}
            )
            self.assertEqual((answer.status, answer.json), (200, words.expected(f"text {number}", number)))
        self.assertTrue(self.is_running(long))
        self.assertEqual(self.job(long).output, words.expected("long", LONG))

    def test_a_list_is_answered_in_order(self) -> None:
        texts = [f"text {number}" for number in range(5)]
        answer = self.stack.post("/v1/models/words", {"inputs": texts, "parameters": {"max_new_tokens": 3}})
        self.assertEqual(answer.json, [words.expected(text, 3) for text in texts])

    def test_batches_of_another_model_run_between_the_steps(self) -> None:
        long = self.long()
        for number in range(5):
            self.assertEqual(self.stack.post("/v1/models/echo", {"inputs": f"text {number}"}).status, 200)
        self.assertTrue(self.is_running(long))
        self.stack.post(f"/v1/jobs/{long}/cancel", {})

    def test_more_than_there_is_room_for_waits_and_is_answered(self) -> None:
        jobs = [self.generate(f"text {number}", 30) for number in range(40)]
        found = {job.pk: job.output for job in self.stack.finished(*jobs)}
        self.assertEqual([found[job] for job in jobs], [words.expected(f"text {n}", 30) for n in range(40)])


class OwnTests(GenerationCase):
    """Each job has its own cancelling, time limit, refusal and failure."""

    def test_a_cancelled_job_leaves_and_the_others_go_on(self) -> None:
        long = self.long()
        other = self.generate("other", 100)
        eventually(lambda: self.is_running(other), "it joined")
        self.stack.post(f"/v1/jobs/{long}/cancel", {})
        eventually(lambda: any("left: cancelled" in line for line in self.stack.log), "it left its batch")
        self.assertEqual(self.job(other).output, words.expected("other", 100))

    def test_one_that_can_never_fit_is_refused_with_the_figure(self) -> None:
        long = self.long()
        refused = self.job(self.generate("text", 2000))
        self.assertEqual((refused.status, refused.error_code), (Status.FAILED, "invalid_input"))
        self.assertIn("2001 tokens of the 2000", refused.error_detail)
        self.assertTrue(self.is_running(long))
        self.stack.post(f"/v1/jobs/{long}/cancel", {})

    def test_one_that_fails_in_a_step_fails_alone(self) -> None:
        others = [self.generate(f"text {number}", 60) for number in range(3)]
        bad = self.generate({"text": "bad", "fail": "exception", "at": 5}, 60)
        self.assertEqual(self.job(bad).error_code, "engine_error")
        found = {job.pk: job.output for job in self.stack.finished(*others)}
        self.assertEqual([found[job] for job in others], [words.expected(f"text {n}", 60) for n in range(3)])

    def test_each_has_the_time_limit_for_itself(self) -> None:
        slow, quick = self.generate("slow", LONG, model="hasty"), self.generate("quick", 20, model="hasty")
        self.assertEqual(self.job(quick).output, words.expected("quick", 20))
        late = self.job(slow)
        self.assertEqual((late.status, late.error_code), (Status.FAILED, "timed_out"))
        self.assertIn("tokens were generated by then", late.error_detail)


class EndTests(GenerationCase):
    def test_a_child_that_is_killed_in_the_middle_loses_nothing(self) -> None:
        jobs = [self.generate(f"text {number}", 100) for number in range(6)]
        eventually(lambda: all(self.is_running(job) for job in jobs), "all run")
        for pid in self.stack.replica_pids():
            os.kill(pid, signal.SIGKILL)
        found = {job.pk: job.output for job in self.stack.finished(*jobs)}
        self.assertEqual([found[job] for job in jobs], [words.expected(f"text {n}", 100) for n in range(6)])

    def test_one_that_kills_its_process_is_found_and_the_others_answered(self) -> None:
        others = [self.generate(f"text {number}", 60) for number in range(5)]
        bad = self.generate({"text": "bad", "fail": "crash", "at": 5}, 60)
        found = {job.pk: job.output for job in self.stack.finished(*others)}
        self.assertEqual([found[job] for job in others], [words.expected(f"text {n}", 60) for n in range(5)])
        self.assertEqual(self.job(bad).error_code, "crashed")

    def test_a_worker_that_is_stopped_answers_what_it_has_begun(self) -> None:
        """Also what waits for its turn beside a batch of another model."""
        long = self.generate("long", 300)
        eventually(lambda: self.is_running(long), "it runs")
        beside = self.stack.submit({"fail": "hang-sleep", "seconds": 1}, model="echo")
        eventually(lambda: self.is_running(beside), "another model has its turn")
        worker = self.stack.children["worker1"]
        worker.process.terminate()
        eventually(lambda: worker.exit_code is not None, "the worker has ended")
        self.assertEqual({job.attempts for job in self.stack.finished(long, beside)}, {1})
        self.assertEqual(self.job(long).output, words.expected("long", 300))
        self.stack.start_worker("worker1")
        self.stack.ready()


class ReloadTests(GenerationCase):
    def test_a_model_is_added_while_answers_are_generated_without_a_pause(self) -> None:
        jobs, enough = [], threading.Event()

        def ask() -> None:
            while not enough.wait(0.2):
                jobs.append(self.generate("text", 150))

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            eventually(lambda: len(jobs) > 8 and self.is_running(jobs[-1]), "they run beside each other")
            self.stack.models_file.write_text(f"{MODELS}{ADDED}")
            eventually(lambda: self.stack.post("/v1/models/added", {"inputs": "x"}).status == 200, "it is loaded")
        finally:
            enough.set()
            asking.join()
        self.assertEqual({(job.status, job.attempts) for job in self.stack.finished(*jobs)}, {(Status.SUCCEEDED, 1)})


class StreamTests(GenerationCase):
    def test_text_comes_as_it_is_generated_and_goes_on_after_a_kill(self) -> None:
        client = Client(f"http://127.0.0.1:{self.stack.port}")
        events = client.stream("story", "once", parameters={"max_new_tokens": 200})
        first = next(events)
        text = words.expected("once", 200)[0]["generated_text"]
        self.assertTrue(len(first.text) < len(text) and text.startswith(first.text), first)
        for pid in self.stack.replica_pids():
            os.kill(pid, signal.SIGKILL)
        rest = list(events)
        self.assertEqual((first.text + "".join(event.text for event in rest), rest[-1].kind), (text, "end"))
        self.assertGreater(len(rest), 10)
