"""The client inside Django: the same interface, without HTTP."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError, as_completed
from contextlib import suppress
from uuid import uuid4

from django.contrib.auth import get_user_model
from django.db import transaction

from api.in_process_client import InProcessClient
from api.models import FilePurpose, StoredFile
from batch_inference_client import ClientError, JobError
from inference.models import Job
from tests import echo
from tests.api.base import ApiTestCase
from tests.api.test_file_batches import ENDPOINT, FileBatchCase, line, write
from tests.conditions import PATIENCE_S


class InProcessClientTests(ApiTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.owner = get_user_model().objects.create_user("owner")
        self.in_process_client = self.enterContext(InProcessClient(owner=self.owner, patience_s=PATIENCE_S))

    def test_it_runs_and_submits_and_maps(self) -> None:
        with self.worker():
            self.assertEqual(self.in_process_client.run("echo", "x", timeout=PATIENCE_S), echo.expected("x"))
            futures = [self.in_process_client.submit("echo", str(number)) for number in range(10)]
            self.assertEqual(len(list(as_completed(futures, timeout=PATIENCE_S))), 10)
            answers = list(self.in_process_client.map("echo", ["a", None, "b"], name=str(uuid4())))
            self.assertEqual([answers[0], answers[2]], [echo.expected("a"), echo.expected("b")])
            self.assertEqual(answers[1].code, "invalid_input")
            self.assertEqual(asyncio.run(self.in_process_client.arun("echo", "x")), echo.expected("x"))
        self.assertEqual(set(Job.objects.values_list("owner", flat=True)), {self.owner.pk})

    def test_errors_are_the_client_s(self) -> None:
        with self.worker(), self.assertRaises(JobError) as failed:
            self.in_process_client.run("echo", {"fail": "invalid"}, timeout=PATIENCE_S)
        self.assertEqual(failed.exception.code, "invalid_input")
        for inputs in (None, object()):
            with self.assertRaises(ClientError) as refused:
                self.in_process_client.submit("echo", inputs)
            self.assertEqual(refused.exception.code, "invalid_input")

    def test_a_job_of_a_transaction_is_waited_for_after_its_end(self) -> None:
        with transaction.atomic():
            future = self.in_process_client.submit("echo", "x")
            for wait in (future.result, future.exception, lambda: next(self.in_process_client.map("echo", ["x"]))):
                with self.subTest(wait), self.assertRaises(ClientError) as early:
                    wait()
                self.assertIn("after its commit", str(early.exception))
        with self.worker():
            self.assertEqual(future.result(PATIENCE_S), echo.expected("x"))

    def test_nobody_waits_for_a_job_of_a_transaction_that_is_undone(self) -> None:
        with transaction.atomic():
            with suppress(KeyError), transaction.atomic():
                undone = self.in_process_client.submit("echo", "x")
                raise KeyError
            kept = self.in_process_client.submit("echo", "y")
        with self.assertRaises(JobError) as missing:
            undone.result(PATIENCE_S)
        self.assertEqual((missing.exception.code, missing.exception.job_id), ("job_not_found", undone.id))
        with self.worker():
            self.assertEqual(kept.result(PATIENCE_S), echo.expected("y"))

    def test_nobody_waits_for_what_is_not_committed(self) -> None:
        with transaction.atomic(), self.assertRaises(ClientError) as early:
            self.in_process_client.run("echo", "x")
        self.assertIn("after its commit", str(early.exception))

    def test_inputs_may_be_rows_that_are_read_meanwhile(self) -> None:
        users = get_user_model().objects
        users.bulk_create([get_user_model()(username=f"user {number}") for number in range(12)])
        names = users.order_by("pk").values_list("username", flat=True)
        with self.worker():
            answers = list(self.in_process_client.map("echo", names.iterator(chunk_size=1), in_flight=4))
        self.assertEqual(answers, [echo.expected(name) for name in names])

    def test_others_jobs_are_not_there(self) -> None:
        job = self.submit()
        for call in (self.in_process_client.job, self.in_process_client.cancel, self.in_process_client.look):
            with self.subTest(call), self.assertRaises(ClientError) as missing:
                call(job["id"])
            self.assertEqual(missing.exception.code, "job_not_found")

    def test_it_cancels_a_job_and_a_bulk(self) -> None:
        future = self.in_process_client.submit("echo", "x")
        self.assertTrue(future.cancel())
        with self.assertRaises(CancelledError):
            future.result()
        bulk = self.in_process_client.service.submit_bulk([b'{"inputs":"a"}'], terms={"model": "echo"}, key="k")
        self.assertEqual(self.in_process_client.cancel(bulk["id"])["counts"]["cancelled"], 1)
        self.assertTrue(self.in_process_client.look(bulk["id"])["finished"])

    def test_models_and_readiness_are_reported(self) -> None:
        with self.worker():
            self.assertEqual(
                [model["name"] for model in self.in_process_client.models()], ["echo", "pictures", "vectors"]
            )
            self.assertTrue(self.in_process_client.ready()["ready"])


class InsideFileBatchTests(FileBatchCase):
    def setUp(self) -> None:
        super().setUp()
        self.in_process_client = self.enterContext(InProcessClient(patience_s=PATIENCE_S))
        self.source = self.folder / "mine.jsonl"
        self.source.write_bytes(write(line("a"), line("b", 7)))

    def test_it_answers_a_file_as_a_batch(self) -> None:
        batch_id = self.in_process_client.create_batch(self.source, ENDPOINT, metadata={"night": "4711"})["id"]
        self.assertEqual(self.in_process_client.batch(batch_id), self.shown(batch_id))
        self.run_to_end(batch_id)
        self.assertEqual(self.in_process_client.wait_for_batch(batch_id), self.shown(batch_id))
        answers = list(self.in_process_client.read_answers(batch_id))
        self.assertEqual([answer["custom_id"] for answer in answers], ["a", "b"])
        self.assertEqual([answer["response"]["status_code"] for answer in answers], [200, 400])
        self.assertEqual(list(self.in_process_client.read_answers_so_far(batch_id)), answers[:1])
        for row in StoredFile.objects.exclude(purpose=FilePurpose.BATCH):
            StoredFile.get_storage().delete(row.stored_as)
        with self.assertRaises(ClientError) as lost:
            list(self.in_process_client.read_answers(batch_id))
        self.assertEqual(lost.exception.code, "file_not_found")

    def test_a_batch_that_is_cancelled_or_is_not_there(self) -> None:
        batch_id = self.in_process_client.create_batch(self.source, ENDPOINT)["id"]
        self.assertEqual(self.in_process_client.cancel(batch_id)["status"], "cancelling")
        self.assertEqual(self.in_process_client.look(batch_id), self.shown(batch_id))
        with (
            InProcessClient(owner=get_user_model().objects.create_user("another")) as stranger,
            self.assertRaises(ClientError) as missing,
        ):
            stranger.batch(batch_id)
        self.assertEqual(missing.exception.code, "batch_not_found")

    def test_a_file_that_is_refused_names_its_lines(self) -> None:
        self.source.write_bytes(write(line("a"), b"{"))
        batch_id = self.in_process_client.create_batch(self.source, ENDPOINT)["id"]
        self.run_to_end(batch_id)
        with self.assertRaises(ClientError) as refused:
            list(self.in_process_client.read_answers(batch_id))
        self.assertIn("line 2: ", refused.exception.detail)

    def test_within_a_transaction_nothing_is_stored_or_awaited(self) -> None:
        batch_id = self.in_process_client.create_batch(self.source, ENDPOINT)["id"]
        with transaction.atomic():
            with self.assertRaisesMessage(ClientError, "A file is not stored within a transaction"):
                self.in_process_client.upload_file(self.source)
            with self.assertRaisesMessage(ClientError, "runs only after its commit"):
                self.in_process_client.wait_for_batch(batch_id)
