"""What a model's own code raises is for operators: nothing of it is in any answer, and all of it on their pages."""

from __future__ import annotations

from typing import Any

from inference.models import Job
from tests.conditions import eventually
from tests.e2e.case import StackCase
from tests.e2e.secretive import SECRET, UNLOADED

MODELS = '[fails]\nengine = "tests.e2e.secretive:predict"\n' + "".join(
    f'\n[{name}]\nengine = "tests.e2e.secretive:NeverLoads"\n' for name in UNLOADED
)
CODES = {"placed": "bad_output", "raised": "engine_error", "unreadable": "bad_output", "memory": "out_of_memory"}


class TestSecrets(StackCase):
    options = {"models": MODELS, "replicas": 1, "environment": {"ENGINE_ERRORS": "redacted"}}

    def failed(self, inputs: Any) -> Job:
        job = self.stack.submit(inputs, model="fails")
        return eventually(lambda: self.stack.jobs.filter(pk=job, finished_at__isnull=False).first(), "it has failed")

    def assert_no_answer_has_it(self, *paths: str) -> None:
        for path in paths:
            answer = self.stack.get(path)
            self.assertNotIn(SECRET, answer.body.decode(), path)
            self.assertNotIn("secretive", answer.body.decode().replace("tests.e2e.secretive:", ""), path)

    def test_of_a_model_that_cannot_be_loaded_answers_have_the_fact_and_operators_the_words(self) -> None:
        rows = self.stack.workers
        eventually(lambda: all(f"{name}: " in (rows.get().error) for name in UNLOADED), "the worker says so")
        self.assertEqual(rows.get().error.count(SECRET), 2)
        reasons = "".join(self.stack.get("/readyz").json["reasons"])
        self.assertTrue(all(f"{name}: its worker cannot run it" in reasons for name in UNLOADED), reasons)
        self.assert_no_answer_has_it("/readyz", "/v1/models", *(f"/v1/models/{name}" for name in UNLOADED))

    def test_of_a_job_that_fails_answers_have_our_words_and_its_row_has_what_was_raised_and_where(self) -> None:
        for text, code in CODES.items():
            job = self.failed(text)
            self.assertEqual(job.error_code, code)
            self.assert_no_answer_has_it(f"/v1/jobs/{job.pk}", f"/v1/jobs/{job.pk}/output", f"/v1/jobs/{job.pk}/stream")
            self.assertNotIn(SECRET, job.error_detail)
            self.assertIn(SECRET, job.error_raised or "")
        blocking = self.stack.post("/v1/models/fails", {"inputs": "raised"})
        self.assertIn("The model failed on this input. Its operator finds", blocking.json["detail"])
        self.assertNotIn(SECRET, blocking.body.decode())

    def test_the_log_and_the_row_say_where_its_own_code_raised_without_the_input(self) -> None:
        trace = self.failed(["unmarked", "marked-input"]).error_trace or ""
        for own in ("secretive.py", ", in look_up\n    raise KeyError(SECRET)"):
            self.assertIn(own, trace)
        self.assertLess(trace.index(", in predict\n"), trace.index(", in look_up\n"))
        self.assertLess(trace.index(", in look_up\n"), trace.index("engine_calls.py"))
        self.assertNotIn("marked-input", trace)
        self.log_shows(", in look_up", "so does the log")
