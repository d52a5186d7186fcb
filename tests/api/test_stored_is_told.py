"""What is stored is told with its id, also when the database goes away at the next statement."""

from typing import Any
from unittest.mock import patch

from django.db import OperationalError, connection
from django.test import override_settings

from inference.models import Bulk, Job
from inference.status import workers
from inference.submission import bulk, jobs, writer
from inference.webhooks import delivery
from tests.api.base import ApiTestCase

JOB = {"model": "echo", "inputs": "x"}


def away(*_: Any, **__: Any) -> Any:
    raise OperationalError("server closed the connection")


class StoredIsToldTests(ApiTestCase):
    def stored(self) -> str:
        return str(Job.objects.get().pk)

    def test_the_end_of_a_blocking_call(self) -> None:
        with patch.object(jobs, "_require_worker"), patch.object(jobs, "fetch", away):
            problem = self.assert_problem(
                self.post("/v1/models/echo?timeout=0.1", {"inputs": "x"}), 504, "not_finished"
            )
        self.assertEqual(problem["job_id"], self.stored())

    def test_a_preferred_wait(self) -> None:
        with patch.object(jobs, "fetch", away):
            answer = self.post("/v1/jobs", JOB, headers={"Prefer": "wait=1"})
        self.assertEqual((answer.status_code, answer.json()["id"]), (202, self.stored()))

    def test_the_estimate_of_the_wait(self) -> None:
        with patch.object(workers, "speeds", workers.Remembered(away)):
            answer = self.post("/v1/jobs", {**JOB, "priority": "low"})
        self.assertEqual((answer.status_code, answer.json()["id"]), (202, self.stored()))

    @override_settings(WEBHOOK_HOSTS=["example.com"])
    def test_the_webhook(self) -> None:
        with patch.object(delivery, "register", away):
            answer = self.post("/v1/jobs", {**JOB, "webhook": "https://example.com/hook"})
        self.assertEqual(self.assert_problem(answer, 503, "store_unavailable")["job_id"], self.stored())

    def test_a_bulk_whose_commit_is_cut_off_or_that_cannot_be_read(self) -> None:
        for where, name in ((connection, "_commit"), (writer, "send"), (bulk, "progress")):
            made = patch.object(Bulk, "save", autospec=True, side_effect=Bulk.save)
            with self.subTest(name), made as save, patch.object(where, name, away):
                answer = self.post("/v1/jobs/bulk", {"model": "echo", "inputs": ["x", "y"]})
                problem = self.assert_problem(answer, 503, "store_unavailable")
                self.assertEqual(problem["bulk_id"], str(save.call_args.args[0].pk))

    def test_a_bulk_that_was_not_stored_has_no_id(self) -> None:
        with patch.object(writer, "insert", away):
            answer = self.post("/v1/jobs/bulk", {"model": "echo", "inputs": ["x", "y"]})
        self.assertNotIn("bulk_id", self.assert_problem(answer, 503, "store_unavailable"))
