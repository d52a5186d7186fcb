"""A list of more rows than a batch holds is one job for its client, and runs in parts."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any
from unittest.mock import patch

from django.conf import settings
from django.db import connection, transaction
from django.test import TransactionTestCase, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inference import errors, process_resources
from inference.broker import publisher, redis_client
from inference.catalog.lookup import get_spec
from inference.catalog.reader import parse_catalog
from inference.catalog.sizes import lengths
from inference.models import Job, Status, Webhook
from inference.status import workers
from inference.store import job_rows
from inference.submission import jobs
from inference.submission.submissions import Submission
from inference.upkeep import reconcile
from inference.values.priority import Priority
from tests.conditions import eventually
from tests.inference.submission import patience
from tests.messages import messages_for

SPEC = dataclasses.replace(get_spec("embeddings"), max_batch_size=4)
ZERO_SHOT = parse_catalog('[m]\ntask = "zero-shot-classification"\nmodel = "m"\nmax_batch_size = 8\n')["m"]
TEXTS = [f"text {number}" for number in range(10)]


class ListTests(TransactionTestCase):
    """The broker is the real one of the test run; there is no worker."""

    def setUp(self) -> None:
        redis_client.get_client().flushdb()
        process_resources.current.queue_counters.clear()
        patience.lend(self)

    def submit(self, inputs: Any = TEXTS, **fields: Any) -> Job:
        return jobs.submit(Submission(**{"spec": SPEC, "inputs": inputs, **fields}))

    def parts(self, whole: Job) -> list[Job]:
        return list(Job.objects.filter(whole=whole.pk).order_by("place"))

    def test_it_is_stored_once_in_parts_of_a_batch_each_and_these_are_sent(self) -> None:
        whole = self.submit(priority=Priority.HIGH, request_id="r1")
        whole.refresh_from_db()
        self.assertEqual((whole.status, whole.size, whole.parts, whole.inputs), (Status.QUEUED, 10, 3, []))
        self.assertIsNone(whole.published_at)
        parts = self.parts(whole)
        self.assertEqual([part.inputs for part in parts], [TEXTS[:4], TEXTS[4:8], TEXTS[8:]])
        self.assertEqual([(part.place, part.size) for part in parts], [(0, 4), (4, 4), (8, 2)])
        self.assertEqual({(part.priority, part.request_id) for part in parts}, {(Priority.HIGH, "r1")})
        self.assertEqual(max(part.length for part in parts), whole.length)
        self.assertLess(whole.pk, min(part.pk for part in parts))
        eventually(lambda: [messages_for(part) for part in parts] == [1, 1, 1], "each part is sent")
        self.assertEqual(messages_for(whole), 0)

    def test_its_parts_are_sent_once_the_callers_transaction_is_committed(self) -> None:
        with transaction.atomic():
            whole = self.submit()
            self.assertEqual([messages_for(part) for part in self.parts(whole)], [0, 0, 0])
        self.assertEqual([messages_for(part) for part in self.parts(whole)], [1, 1, 1])

    def test_no_message_of_the_whole_is_missing(self) -> None:
        whole = self.submit()
        Job.objects.update(created_at=timezone.now() - datetime.timedelta(minutes=1))  # long enough to be missed
        Job.objects.filter(whole=whole.pk).update(published_at=None)
        with (
            patch.object(publisher, "publish_messages") as sent,
            patch.object(reconcile, "get_catalog", return_value={SPEC.name: SPEC}),
        ):
            reconcile.reconcile()
        ids = {message.job_id for call in sent.call_args_list for message in call.args[0]}
        self.assertEqual(ids, {str(part.pk) for part in self.parts(whole)})

    def test_labels_and_sentences_count_as_rows_and_an_input_is_never_cut(self) -> None:
        labels = {"candidate_labels": ["a", "b", "c"]}
        sizes = [(part.place, part.size) for part in lengths.split_list(ZERO_SHOT, ["x"] * 5, labels)]
        self.assertEqual(sizes, [(0, 6), (2, 6), (4, 3)])
        spec = dataclasses.replace(SPEC, task="sentence-similarity")
        long = {"source_sentence": "x", "sentences": ["y"] * 9}
        short = {"source_sentence": "x", "sentences": ["y"]}
        sizes = [(part.place, part.size) for part in lengths.split_list(spec, [short, short, long, short], {})]
        self.assertEqual(sizes, [(0, 4), (2, 10), (3, 2)])

    def test_one_input_of_many_rows_is_a_job_without_parts(self) -> None:
        many = {"candidate_labels": [f"label {number}" for number in range(20)]}
        for inputs in ("x", ["x"]):
            job = self.submit(inputs, spec=ZERO_SHOT, parameters=many)
            self.assertEqual((job.size, job.parts, job.inputs), (20, None, inputs))

    def test_each_input_has_the_bound_of_one_and_the_list_has_its_own(self) -> None:
        with patch("inference.catalog.request_validation.MAX_ROWS", 10):
            similar = dataclasses.replace(SPEC, task="sentence-similarity")
            long = {"source_sentence": "x", "sentences": ["y"] * 10}
            with self.assertRaisesRegex(errors.InvalidInput, "make 11 texts; at most 10 run in one call"):
                self.submit([long] * 2, spec=similar)
        with (
            override_settings(MAX_BULK_INPUTS=9),
            self.assertRaisesRegex(errors.InvalidInput, "at most 9 inputs .* 10"),
        ):
            self.submit()
        self.assertFalse(Job.objects.exists())

    def test_parameters_are_bounded_as_each_part_keeps_them(self) -> None:
        labels = {"candidate_labels": ["n" * 900 for _ in range(8)]}
        with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=20_000):
            self.submit(["x"] * 2, spec=ZERO_SHOT, parameters=labels)
            with self.assertRaisesRegex(errors.InvalidInput, "of 3 jobs at most 6666 bytes"):
                self.submit(["x"] * 3, spec=ZERO_SHOT, parameters=labels)

    def test_every_part_takes_room_in_the_queue_and_the_whole_does(self) -> None:
        spec = dataclasses.replace(SPEC, max_queued=7)
        with self.assertRaisesRegex(errors.InvalidInput, "they make 8 jobs, and at most 7 fit in the queue"):
            self.submit(["x"] * 28, spec=spec)
        self.submit(spec=spec)
        with self.assertRaises(errors.QueueFull):
            self.submit(spec=spec)
        self.submit("x", spec=spec)

    def test_it_is_stored_whole_or_not_at_all(self) -> None:
        inserted: list[int] = []
        insert = job_rows.insert_jobs

        def fail_the_second(group: Any) -> None:
            if inserted:
                raise ValueError("the second statement")
            inserted.append(len(group))
            insert(group)

        second = self.assertRaisesRegex(ValueError, "the second")
        with patch.object(job_rows, "MOST_BYTES", 100), patch.object(job_rows, "insert_jobs", fail_the_second), second:
            self.submit()
        self.assertFalse(Job.objects.exists())

    def test_a_key_makes_one_job_of_it(self) -> None:
        first, second = (self.submit(idempotency_key="k") for _ in range(2))
        self.assertEqual((first.pk, Job.objects.count()), (second.pk, 4))
        with self.assertRaises(errors.IdempotencyMismatch):
            self.submit(TEXTS[:9], idempotency_key="k")

    @override_settings(WEBHOOK_HOSTS=["example.com"])
    def test_it_has_one_webhook(self) -> None:
        whole = self.submit(webhook="https://example.com/hook")
        self.assertEqual(Webhook.objects.get().job_id, whole.pk)

    def test_a_retry_has_its_inputs_in_order(self) -> None:
        whole = self.submit()
        jobs.cancel(whole.pk)
        again = jobs.submit(dataclasses.replace(jobs.make_resubmission(jobs.fetch(whole.pk)), spec=SPEC))
        self.assertNotEqual(again.pk, whole.pk)
        self.assertEqual(job_rows.read_inputs_of_whole(again.pk), TEXTS)

    def test_cancelling_it_cancels_its_parts(self) -> None:
        whole = self.submit()
        self.assertEqual(jobs.cancel(whole.pk).status, Status.CANCELLED)
        self.assertEqual({part.status for part in self.parts(whole)}, {Status.CANCELLED})

    def test_a_part_is_no_job_of_its_own(self) -> None:
        part = self.parts(self.submit())[0]
        with self.assertRaises(errors.JobNotFound):
            jobs.fetch(part.pk)

    def test_it_costs_a_statement_for_500_parts(self) -> None:
        with CaptureQueriesContext(connection) as queries:
            self.submit(["x"] * 4 * (job_rows.MOST - 1), priority=Priority.LOW)
        inserts = [query["sql"] for query in queries if query["sql"].startswith("INSERT")]
        self.assertEqual(len(inserts), 1)
        self.assertEqual(Job.objects.count(), job_rows.MOST)

    def test_a_job_that_fits_costs_what_it_did(self) -> None:
        workers.predict_jobs_s(SPEC.name, 1)  # is remembered
        with CaptureQueriesContext(connection) as queries:  # of this thread: another one inserts the row
            self.submit(TEXTS[:4])
        of_jobs = [query["sql"] for query in queries if "inference_job" in query["sql"]]  # others: what is remembered
        self.assertEqual([sql[:6] for sql in of_jobs], ["SELECT"])  # how many wait
        self.assertGreater(settings.MAX_BULK_INPUTS, SPEC.max_batch_size)
