"""A finished job ends every client's loop, whatever it ended with."""

from __future__ import annotations

from types import SimpleNamespace

from django.contrib.auth import get_user_model
from django.test import override_settings

from api.errors import problems
from api.models import ApiKey
from inference.errors import RETRYABLE_OUTCOMES, InferenceError
from inference.models import TERMINAL, Job, Status
from tests.api.base import ApiTestCase
from tests.api.documented_loop import Session, output_loop
from tests.conditions import PATIENCE_S, ago

AGAIN = (202, 429, 503, 504)  # a client that polls goes on
CODES = (*problems.TABLE, "an_engine_s_own")


def ended(code: str) -> Job:
    status = code if code in (Status.CANCELLED, Status.EXPIRED) else Status.FAILED
    return Job.objects.create(
        model="echo",
        inputs="x",
        status=status,
        finished_at=ago(),
        error_detail="It did not go well.",
        error_code="" if status == code else code,
    )


class FinishedTests(ApiTestCase):
    def test_no_outcome_is_answered_as_if_it_were_not_over(self) -> None:
        for code in CODES:
            job = ended(code)
            for path in (f"/v1/jobs/{job.id}", f"/v1/jobs/{job.id}/output", f"/v1/jobs/{job.id}/output?wait=5"):
                with self.subTest(code, path=path):
                    answer = self.client.get(path)
                    self.assertNotIn(answer.status_code, AGAIN)
                    self.assertNotIn("Retry-After", answer)

    def test_the_blocking_call_says_the_same_of_a_job_that_ended(self) -> None:
        with self.worker(lambda code, _: failure(code)):
            for code in CODES:
                with self.subTest(code):
                    answer = self.post(f"/v1/models/echo?timeout={PATIENCE_S:g}", {"inputs": code})
                    self.assertNotIn(answer.status_code, AGAIN)
                    self.assertNotIn("Retry-After", answer)
                    self.assertEqual(answer.json()["retryable"], code in RETRYABLE_OUTCOMES)

    def test_the_documented_loop_requests_once(self) -> None:
        output = output_loop(SimpleNamespace(monotonic=lambda: 0.0, sleep=self.fail))
        for code in CODES:
            with self.subTest(code):
                session, job = Session(self.client), ended(code)
                with self.assertRaises(ValueError):
                    output(session, "", job.id)
                self.assertEqual(session.calls, 1)

    def test_what_may_succeed_as_a_new_job_says_so_and_how(self) -> None:
        for code in problems.OUTCOMES:
            with self.subTest(code):
                job = ended(code)
                problem = self.client.get(f"/v1/jobs/{job.id}/output").json()
                self.assertEqual(problem["retryable"], code in RETRYABLE_OUTCOMES)
                self.assertEqual(f"POST /v1/jobs/{job.id}/retry" in problem["detail"], code in RETRYABLE_OUTCOMES)
                shown = self.client.get(f"/v1/jobs/{job.id}").json()["error"]
                self.assertEqual(bool(shown and shown["retryable"]), code in RETRYABLE_OUTCOMES)
        self.assertEqual(RETRYABLE_OUTCOMES, {"device_failed", "model_unavailable", "lost"})

    def test_each_final_state_is_among_the_outcomes(self) -> None:
        self.assertLessEqual(set(TERMINAL) - {Status.SUCCEEDED}, problems.OUTCOMES.keys())


def failure(code: str) -> InferenceError:
    error = InferenceError("It did not go well.")
    error.code = code
    return error


class RetryTests(ApiTestCase):
    def test_running_again_is_a_new_job_with_the_same_inputs(self) -> None:
        old = ended("lost")
        answer = self.post(f"/v1/jobs/{old.id}/retry")
        new = Job.objects.get(pk=answer.json()["id"])
        self.assertEqual((answer.status_code, answer["Location"]), (202, f"/v1/jobs/{new.id}"))
        self.assertEqual((new.inputs, new.status, new.request_id), ("x", Status.QUEUED, answer["X-Request-Id"]))
        old.refresh_from_db()
        self.assertEqual(old.status, Status.FAILED)

    def test_a_key_makes_one_new_job_however_often(self) -> None:
        old = ended("lost")
        ids = {self.post(f"/v1/jobs/{old.id}/retry", headers={"Idempotency-Key": "k"}).json()["id"] for _ in range(2)}
        self.assertEqual((len(ids), Job.objects.count()), (1, 2))

    @override_settings(API_KEY_REQUIRED=True)
    def test_the_new_job_belongs_to_the_old_one_s_owner_and_nobody_else_may_make_it(self) -> None:
        users = get_user_model().objects
        ada = users.create_user("ada")
        old = ended("lost")
        Job.objects.filter(pk=old.pk).update(owner=ada)
        for user, status in ((users.create_user("eve"), 404), (users.create_superuser("staff"), 202)):
            with self.subTest(user):
                key = ApiKey.objects.issue_key(owner=user)[1]
                answer = self.post(f"/v1/jobs/{old.id}/retry", headers={"Authorization": f"Bearer {key}"})
                self.assertEqual(answer.status_code, status)
        self.assertEqual(Job.objects.exclude(pk=old.pk).get().owner, ada)
