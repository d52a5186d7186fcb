from datetime import timedelta
from unittest.mock import patch
from uuid import uuid4

from django.test import override_settings

from inference.figures import tally_rows
from inference.figures.sample import SERVICE
from inference.models import Bulk, Figure, Job, Status, Webhook
from inference.status import workers
from inference.values.priority import Priority
from tests import echo
from tests.api.base import ApiTestCase
from tests.conditions import PATIENCE_S, eventually
from tests.inference.figures.agreement import drop_tallies

WAIT = f"wait={PATIENCE_S:g}"


class SubmitTests(ApiTestCase):
    def test_an_accepted_job_is_a_row_and_can_be_found_at_its_location(self) -> None:
        answer = self.post("/v1/jobs", {"model": "echo", "inputs": "text", "priority": "high", "expires_in": 60})
        self.assertEqual(answer.status_code, 202)
        row = Job.objects.get()
        self.assertEqual(answer["Location"], f"/v1/jobs/{row.id}")
        self.assertGreaterEqual(int(answer["Retry-After"]), 1)
        self.assertEqual((row.inputs, row.priority), ("text", Priority.HIGH))
        self.assertEqual(row.expires_at, row.created_at + timedelta(seconds=60))
        shown = self.client.get(answer["Location"]).json()
        self.assertEqual((shown["id"], shown["status"], shown["priority"]), (str(row.id), "queued", "high"))

    def test_a_preferred_wait_brings_the_finished_job(self) -> None:
        with self.worker():
            answer = self.post("/v1/jobs", {"model": "echo", "inputs": "text"}, headers={"Prefer": WAIT})
        self.assertEqual((answer.status_code, answer["Preference-Applied"]), (200, WAIT))
        self.assertEqual(answer.json()["output"], echo.expected("text"))

    def test_a_wait_that_is_over_answers_the_accepted_job(self) -> None:
        answer = self.post("/v1/jobs", {"model": "echo", "inputs": "text"}, headers={"Prefer": "wait=0"})
        self.assertEqual((answer.status_code, answer["Preference-Applied"]), (202, "wait=0"))

    def test_an_unknown_model_is_named_with_the_known_ones(self) -> None:
        problem = self.assert_problem(self.post("/v1/jobs", {"model": "nope", "inputs": "x"}), 404, "unknown_model")
        self.assertIn("echo", problem["detail"])

    def test_what_is_wrong_in_a_body_is_named_by_field(self) -> None:
        wrong = {
            "model": {"model": 7, "inputs": "x"},
            "inputs": {"model": "echo"},
            "priority": {"model": "echo", "inputs": "x", "priority": "urgent"},
            "expires_in": {"model": "echo", "inputs": "x", "expires_in": "7"},
            "parameters": {"model": "echo", "inputs": "x", "parameters": []},
            "imputs": {"model": "echo", "inputs": "x", "imputs": "y"},
            "body": ["echo"],
        }
        for field, body in wrong.items():
            with self.subTest(field):
                problem = self.assert_problem(self.post("/v1/jobs", body), 422, "invalid_input")
                self.assertEqual([error["field"] for error in problem["errors"]], [field])
        self.assertEqual(Job.objects.count(), 0)

    def test_a_full_queue_is_503_until_there_is_room_at_the_measured_speed(self) -> None:
        Job.objects.bulk_create(Job(model="echo", inputs="x") for _ in range(20))
        for speed, seconds in ((0.3, "4"), (0.01, "60"), (100.0, "1")):
            with (
                self.subTest(speed=speed),
                patch.object(workers, "measure_model_speeds", lambda speed=speed: {"echo": speed}),
            ):
                answer = self.post("/v1/jobs", {"model": "echo", "inputs": "x"})
                self.assert_problem(answer, 503, "queue_full")
                self.assertEqual(answer["Retry-After"], seconds)

    def test_a_request_that_is_refused_is_counted_of_its_model(self) -> None:
        Job.objects.bulk_create(Job(model="echo", inputs="x") for _ in range(20))
        drop_tallies()
        for address, body in (("/v1/jobs", {"model": "echo", "inputs": "x"}), ("/v1/models/echo", {"inputs": "x"})):
            self.assertEqual(self.post(address, body).status_code, 503)
        tally_rows.flush_tallies()
        refused = {figure.model: figure.tally["refused"] for figure in Figure.objects.exclude(model=SERVICE)}
        self.assertEqual(refused, {"echo": {"queue_full": 1, "no_worker": 1}})

    @override_settings(MAX_LOW_QUEUED=23)
    def test_more_jobs_of_low_priority_may_wait_up_to_a_limit_of_their_own(self) -> None:
        Job.objects.bulk_create(Job(model="echo", inputs="x") for _ in range(20))
        low = {"model": "echo", "inputs": "x", "priority": "low"}
        answers = [self.post("/v1/jobs", low) for _ in range(4)]
        self.assertEqual([answer.status_code for answer in answers], [202, 202, 202, 503])
        self.assert_problem(answers[-1], 503, "queue_full")


class PollTests(ApiTestCase):
    def test_a_long_poll_answers_when_the_job_is_finished(self) -> None:
        job = self.submit("text")
        with self.worker():
            shown = self.client.get(f"/v1/jobs/{job['id']}?{WAIT}").json()
        self.assertEqual((shown["status"], shown["output"]), ("succeeded", echo.expected("text")))
        self.assertEqual(self.client.get(f"/v1/jobs/{job['id']}/output").json(), echo.expected("text"))

    def test_a_poll_of_what_has_not_changed_is_304(self) -> None:
        job = self.submit()
        first = self.client.get(f"/v1/jobs/{job['id']}")
        again = self.client.get(f"/v1/jobs/{job['id']}", headers={"If-None-Match": first["ETag"]})
        self.assertEqual((again.status_code, again.content), (304, b""))
        with self.worker():
            self.client.get(f"/v1/jobs/{job['id']}?{WAIT}")
        changed = self.client.get(f"/v1/jobs/{job['id']}", headers={"If-None-Match": first["ETag"]})
        self.assertEqual(changed.status_code, 200)

    def test_the_output_of_a_waiting_job_is_504_with_the_jobs_id(self) -> None:
        job = self.submit()
        answer = self.client.get(f"/v1/jobs/{job['id']}/output?wait=0.01")
        problem = self.assert_problem(answer, 504, "not_finished")
        self.assertEqual(problem["job_id"], job["id"])
        self.assertIn("Retry-After", answer)

    def test_the_output_of_a_failed_job_is_its_error(self) -> None:
        with self.worker():
            job = self.submit({"fail": "invalid"})
            answer = self.client.get(f"/v1/jobs/{job['id']}/output?{WAIT}")
        self.assert_problem(answer, 422, "invalid_input")

    def test_an_unknown_job_is_404_whatever_its_id_looks_like(self) -> None:
        for job_id in (uuid4(), "7", "%00", "a" * 500):
            with self.subTest(job_id):
                self.assert_problem(self.client.get(f"/v1/jobs/{job_id}"), 404, "job_not_found")

    def test_a_wait_must_be_a_number_of_seconds(self) -> None:
        job = self.submit()
        for wait in ("x", "-1", "1e9", "301", "nan", ""):
            with self.subTest(wait):
                self.assert_problem(self.client.get(f"/v1/jobs/{job['id']}?wait={wait}"), 400, "bad_request")

    def test_a_misspelt_query_parameter_is_refused_by_name(self) -> None:
        problem = self.assert_problem(self.client.get(f"/v1/jobs/{uuid4()}?wiat=1"), 400, "bad_request")
        self.assertIn("wiat", problem["detail"])


class CancelTests(ApiTestCase):
    def test_cancelling_twice_is_the_same_as_once(self) -> None:
        job = self.submit()
        for _ in range(2):
            answer = self.post(f"/v1/jobs/{job['id']}/cancel")
            self.assertEqual((answer.status_code, answer.json()["status"]), (200, "cancelled"))
        self.assert_problem(self.client.get(f"/v1/jobs/{job['id']}/output"), 409, "cancelled")

    def test_a_finished_job_stays_as_it_is(self) -> None:
        job = self.submit()
        with self.worker():
            eventually(lambda: Job.objects.filter(status=Status.SUCCEEDED).exists())
        self.assertEqual(self.post(f"/v1/jobs/{job['id']}/cancel").json()["status"], "succeeded")


class WebhookTests(ApiTestCase):
    def test_an_address_is_refused_where_none_may_be_called(self) -> None:
        answer = self.post("/v1/jobs", {"model": "echo", "inputs": "x", "webhook": "https://a.example/"})
        self.assertIn("not configured", self.assert_problem(answer, 422, "invalid_input")["detail"])
        self.assertEqual(Job.objects.count(), 0)

    @override_settings(WEBHOOK_HOSTS=["a.example"])
    def test_an_address_is_kept_with_the_job(self) -> None:
        job = self.submit(webhook="https://a.example/hook")
        self.assertEqual(str(Webhook.objects.get(url="https://a.example/hook").job_id), job["id"])


class DeleteTests(ApiTestCase):
    def test_a_finished_job_is_deleted_with_its_parts_and_its_webhook(self) -> None:
        kept = Job.objects.create(model="echo", inputs="kept", status=Status.SUCCEEDED)
        job = Job.objects.create(model="echo", inputs=[], parts=2, status=Status.CANCELLED)
        for status in (Status.SUCCEEDED, Status.RUNNING):
            Job.objects.create(model="echo", inputs=["secret"], whole=job.id, status=status)
        Webhook.objects.create(job=job, url="https://a.example/")
        answer = self.client.delete(f"/v1/jobs/{job.id}")
        self.assertEqual(answer.json(), {"id": str(job.id), "object": "job", "deleted": True})
        self.assertEqual((list(Job.objects.all()), Webhook.objects.count()), ([kept], 0))
        for method in (self.client.get, self.client.delete):
            self.assert_problem(method(f"/v1/jobs/{job.id}"), 404, "job_not_found")

    def test_a_job_that_is_not_finished_or_is_counted_by_a_bulk_stays(self) -> None:
        bulk = Bulk.objects.create(model="echo", total=1)
        for fields in (
            {"status": Status.QUEUED},
            {"status": Status.RUNNING},
            {"status": Status.SUCCEEDED, "bulk": bulk, "bulk_index": 0},
        ):
            with self.subTest(fields):
                job = Job.objects.create(model="echo", inputs="x", **fields)
                self.assert_problem(self.client.delete(f"/v1/jobs/{job.id}"), 409, "job_in_use")
                self.assertTrue(Job.objects.filter(pk=job.pk).exists())

    def test_its_idempotency_key_is_free_again(self) -> None:
        key = {"Idempotency-Key": "k"}
        job = self.post("/v1/jobs", {"model": "echo", "inputs": "x"}, headers=key).json()
        self.post(f"/v1/jobs/{job['id']}/cancel")
        self.assertEqual(self.client.delete(f"/v1/jobs/{job['id']}").status_code, 200)
        self.assertNotEqual(
            self.post("/v1/jobs", {"model": "echo", "inputs": "y"}, headers=key).json()["id"], job["id"]
        )
