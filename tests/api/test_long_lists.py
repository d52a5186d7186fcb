"""A list of more inputs than a batch holds, as its client sees it: one job."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.test import override_settings

from inference.models import Job, Status
from inference.status import metrics
from tests import echo
from tests.api.base import ApiTestCase
from tests.conditions import PATIENCE_S

TEXTS = [f"text {number}" for number in range(10)]  # a batch holds four
RUN = f"/v1/models/echo?timeout={PATIENCE_S:g}"
EXPECTED = [echo.expected(text) for text in TEXTS]


class LongListTests(ApiTestCase):
    def finished(self, job: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/v1/jobs/{job['id']}?wait={PATIENCE_S:g}").json()
        return found

    def test_a_blocking_call_answers_with_what_single_calls_do_in_order(self) -> None:
        with self.worker():
            together = self.post(RUN, {"inputs": TEXTS})
            apart = [self.post(RUN, {"inputs": text}).json() for text in TEXTS[:5]]
        self.assertEqual((together.status_code, together.json()), (200, EXPECTED))
        self.assertEqual(together.json()[:5], apart)

    def test_a_submitted_one_is_polled_like_any_job(self) -> None:
        with self.worker():
            accepted = self.submit(TEXTS)
            job = self.finished(accepted)
            output = self.client.get(f"/v1/jobs/{job['id']}/output")
        self.assertEqual(accepted.keys(), self.submit().keys())
        self.assertEqual((accepted["status"], job["status"], job["error"]), ("queued", "succeeded", None))
        self.assertEqual((job["output"], output.json()), (EXPECTED, EXPECTED))
        self.assertIsNotNone(job["started_at"])

    def test_it_is_one_job_of_every_list_and_its_parts_are_none(self) -> None:
        job = self.submit(TEXTS)
        self.assertEqual([item["id"] for item in self.client.get("/v1/jobs").json()["items"]], [job["id"]])
        self.assertEqual(len(self.client.get("/v1/jobs?model=echo&status=queued").json()["items"]), 1)
        part = Job.objects.filter(whole=UUID(job["id"])).first()
        assert part
        for path in (f"/v1/jobs/{part.pk}", f"/v1/jobs/{part.pk}/output"):
            self.assert_problem(self.client.get(path), 404, "job_not_found")
        for action in ("cancel", "retry"):
            self.assert_problem(self.post(f"/v1/jobs/{part.pk}/{action}"), 404, "job_not_found")

    def test_its_place_is_that_of_its_first_part(self) -> None:
        self.submit("before")
        job = self.submit(TEXTS)
        after = self.submit("after")
        self.assertEqual(self.client.get(f"/v1/jobs/{job['id']}").json()["position"], 2)
        self.assertEqual(self.client.get(f"/v1/jobs/{after['id']}").json()["position"], 6)

    def test_its_etag_stays_until_something_changes(self) -> None:
        job = self.submit(TEXTS)
        path = f"/v1/jobs/{job['id']}"
        etag = self.client.get(path)["ETag"]
        self.assertEqual(self.client.get(path, headers={"If-None-Match": etag}).status_code, 304)
        self.post(f"{path}/cancel")
        self.assertEqual(self.client.get(path, headers={"If-None-Match": etag}).status_code, 200)

    def test_it_is_cancelled_as_one(self) -> None:
        job = self.submit(TEXTS)
        cancelled = self.post(f"/v1/jobs/{job['id']}/cancel").json()
        self.assertEqual((cancelled["status"], cancelled["was_running"]), ("cancelled", False))
        self.assertEqual(set(Job.objects.values_list("status", flat=True)), {Status.CANCELLED})

    def test_a_retry_is_the_same_list(self) -> None:
        job = self.submit(TEXTS)
        self.post(f"/v1/jobs/{job['id']}/cancel")
        again = self.post(f"/v1/jobs/{job['id']}/retry").json()
        with self.worker():
            self.assertEqual(self.finished(again)["output"], EXPECTED)

    def test_a_blocking_call_that_waits_in_vain_names_the_one_job(self) -> None:
        self.idle_worker()
        problem = self.assert_problem(self.post("/v1/models/echo?timeout=0.01", {"inputs": TEXTS}), 504, "not_finished")
        self.assertEqual(Job.objects.get(whole=None).pk, UUID(problem["job_id"]))

    @override_settings(MAX_BULK_INPUTS=9)
    def test_more_than_its_bound_is_refused(self) -> None:
        problem = self.assert_problem(self.post("/v1/models/echo", {"inputs": TEXTS}), 422, "invalid_input")
        self.assertIn("at most 9 inputs make one job here, not 10", problem["detail"])

    def test_a_line_of_a_bulk_holds_no_more_than_a_batch(self) -> None:
        lines = b'{"inputs": ["a", "b", "c", "d", "e"]}\n{"inputs": ["a", "b"]}'
        answer = self.post("/v1/jobs/bulk?model=echo", lines, content_type="application/x-ndjson").json()
        self.assertEqual((answer["rejected"], answer["errors"][0]["index"]), (1, 0))
        self.assertIn("at most 4 inputs make one job here", answer["errors"][0]["detail"])

    def test_figures_count_what_waits_in_parts_and_what_has_ended_whole(self) -> None:
        job = self.submit(TEXTS)
        self.assertIn('inference_jobs_waiting{model="echo",status="queued"} 3.0', metrics.format_metrics().decode())
        with self.worker():
            self.finished(job)
        self.assertIn(
            'inference_jobs_total{code="",model="echo",status="succeeded"} 1.0', metrics.format_metrics().decode()
        )
