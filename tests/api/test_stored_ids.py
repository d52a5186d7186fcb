"""What is stored is told with its id, also when the database goes away at the next statement."""

import os
from typing import Any
from unittest.mock import patch

from django.db import OperationalError, connection
from django.test import override_settings

from inference import budget
from inference.broker import publisher
from inference.errors import BrokerUnavailable
from inference.models import Bulk, Job
from inference.status import workers
from inference.submission import bulk, jobs
from inference.web_process import writer
from inference.webhooks import delivery
from tests.api.base import ApiTestCase

JOB = {"model": "echo", "inputs": "x"}


def away(*_: Any, **__: Any) -> Any:
    raise OperationalError("server closed the connection")


class StoredIdsTests(ApiTestCase):
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
        with patch.object(workers, "measure_model_speeds", workers.Remembered(away)):
            answer = self.post("/v1/jobs", {**JOB, "priority": "low"})
        self.assertEqual((answer.status_code, answer.json()["id"]), (202, self.stored()))

    @override_settings(WEBHOOK_HOSTS=["example.com"])
    def test_the_webhook(self) -> None:
        with patch.object(delivery, "register_webhook", away):
            answer = self.post("/v1/jobs", {**JOB, "webhook": "https://example.com/hook"})
        self.assertEqual(self.assert_problem(answer, 503, "store_unavailable")["job_id"], self.stored())

    def bulk(self, **headers: str) -> Any:
        return self.post("/v1/jobs/bulk", {"model": "echo", "inputs": ["x", "y"]}, headers=headers)

    def test_a_bulk_with_a_commit_that_is_cut_off(self) -> None:
        made = patch.object(Bulk, "save", autospec=True, side_effect=Bulk.save)
        with made as save, patch.object(connection, "_commit", away):
            problem = self.assert_problem(self.bulk(), 503, "store_unavailable")
        self.assertEqual(problem["bulk_id"], str(save.call_args.args[0].pk))

    def test_a_bulk_with_messages_that_are_not_sent_in_the_time_of_its_request(self) -> None:
        def send(messages: Any) -> None:
            waited = budget.counted_wait()
            with waited:
                waited.began_at -= 9.0
            raise BrokerUnavailable("away")

        with patch.dict(os.environ, DATABASE_ANSWER_S="4"), patch.object(publisher, "publish_messages", send):
            answer = self.bulk()
        shown = answer.json()
        self.assertEqual((answer.status_code, shown["id"]), (202, str(Bulk.objects.get().pk)))
        stored = Job.objects.order_by("bulk_index").values_list("bulk_index", "pk")
        self.assertEqual([(job["index"], job["id"]) for job in shown["jobs"]], [(n, str(pk)) for n, pk in stored])
        self.assertEqual((shown["counts"]["queued"], shown["finished"]), (2, False))

    def test_a_bulk_that_was_stored_before_and_cannot_be_read(self) -> None:
        stored = self.bulk(**{"Idempotency-Key": "k1"}).json()["id"]
        with patch.object(bulk, "read_progress", away):
            problem = self.assert_problem(self.bulk(**{"Idempotency-Key": "k1"}), 503, "store_unavailable")
        self.assertEqual(problem["bulk_id"], stored)

    def test_a_bulk_that_was_not_stored_has_no_id(self) -> None:
        with patch.object(writer, "insert_group", away):
            self.assertNotIn("bulk_id", self.assert_problem(self.bulk(), 503, "store_unavailable"))
