"""Jobs that are accepted together share messages."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any
from unittest.mock import patch

from django.test import TransactionTestCase
from django.utils import timezone

from inference import errors, process_resources
from inference.broker import publisher, redis_client
from inference.broker.address import get_queue_name
from inference.catalog.lookup import get_spec
from inference.catalog.reader import parse_catalog
from inference.models import Job
from inference.submission import bulk, multi_job_store
from inference.submission.submissions import BulkItem, BulkSubmission
from inference.upkeep import reconcile
from inference.values.priority import Priority
from tests.inference.submission import patience
from tests.messages import packs

SPEC = dataclasses.replace(get_spec("embeddings"), max_batch_size=4)


class PackTests(TransactionTestCase):
    """The broker is the real one of the test run; there is no worker."""

    def setUp(self) -> None:
        redis_client.get_client().flushdb()
        process_resources.current.queue_counters.clear()
        patience.lend(self)

    def submit(self, *items: BulkItem) -> list[str]:
        accepted = bulk.submit(BulkSubmission(spec=SPEC, items=items))
        return [str(job_id) for _, job_id in accepted.jobs]

    def sent(self) -> list[list[str]]:
        """But for what other tests' writers were still sending."""
        known = set(map(str, Job.objects.values_list("pk", flat=True)))
        return [pack for pack in packs(get_queue_name(SPEC.name)) if known.issuperset(pack)]

    def texts(self, count: int) -> list[BulkItem]:
        return [BulkItem(inputs=f"text {number}") for number in range(count)]

    def test_a_message_has_as_many_of_a_bulk_as_a_batch_holds_in_their_order(self) -> None:
        ids = self.submit(*self.texts(10))
        self.assertEqual(self.sent(), [ids[:4], ids[4:8], ids[8:]])

    def test_a_message_has_a_bounded_number_of_jobs_and_fewer_where_the_broker_counts_messages(self) -> None:
        spec = dataclasses.replace(SPEC, max_batch_size=1000)
        for is_redis, most in ((True, multi_job_store.PACKED), (False, multi_job_store.PACKED_AMQP)):
            sent: list[Any] = []
            with (
                self.subTest(is_redis=is_redis),
                patch.object(publisher, "uses_redis", return_value=is_redis),
                patch.object(publisher, "publish_messages", sent.extend),
            ):
                bulk.submit(BulkSubmission(spec=spec, items=self.texts(most + 1)))
            self.assertEqual([len(message.job_ids) for message in sent], [most, 1])

    def test_rows_count_and_not_jobs(self) -> None:
        lists = [
            BulkItem(inputs=["a", "b", "c"]),
            BulkItem(inputs=["d", "e"]),
            BulkItem(inputs=["f", "g"]),
            BulkItem(inputs="h"),
        ]
        first, second, third, fourth = self.submit(*lists)
        self.assertEqual(self.sent(), [[first], [second, third], [fourth]])

    def test_jobs_of_other_parameters_have_other_messages(self) -> None:
        text = '[embeddings]\nengine = "x:Y"\n[embeddings.parameters]\ntop_k = { type = "integer", default = 1 }\n'
        other = {"top_k": 2}
        items = [
            BulkItem(inputs="a"),
            BulkItem(inputs="b"),
            BulkItem(inputs="c", parameters=other),
            BulkItem(inputs="d"),
        ]
        accepted = bulk.submit(BulkSubmission(spec=parse_catalog(text)[SPEC.name], items=items))
        first, second, third, fourth = [str(job_id) for _, job_id in accepted.jobs]
        self.assertEqual(self.sent(), [[first, second], [third], [fourth]])

    def test_of_a_message_that_was_not_sent_all_are_sent_again_each_in_its_own(self) -> None:
        away = patch.object(publisher, "publish_messages", side_effect=errors.BrokerUnavailable("away"))
        with away, self.assertLogs("inference.store.job_messages", "WARNING"):
            ids = self.submit(*self.texts(6))
        self.assertEqual(Job.objects.filter(published_at=None, priority=Priority.LOW).count(), 6)
        Job.objects.update(created_at=timezone.now() - datetime.timedelta(minutes=1))  # long enough to be missed
        with self.assertLogs(reconcile.logger, "WARNING"):
            reconcile.reconcile()
        self.assertEqual(self.sent(), [[job_id] for job_id in ids])
