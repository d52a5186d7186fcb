"""What is asked all the time is answered from an index, and never by a scan of the finished jobs."""

from __future__ import annotations

import datetime
from typing import Any
from unittest import skipUnless
from uuid import uuid4

from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.test import TestCase
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inference.models import Job, Status
from inference.status.attention import jobs
from inference.values.priority import Priority
from inference.webhooks import delivery

NUMBER = 300
KEY = "inf_AbCdEfGh"
QUEUED = Job.objects.filter(status=Status.QUEUED)
OF_QUEUED = "job_queued|job_queued_by_owners"  # with five rows they cost the same
AN_HOUR = datetime.timedelta(hours=1)


class IndexTests(TestCase):
    owner: User

    @classmethod
    def setUpTestData(cls) -> None:
        cls.owner = User.objects.create_user("ada")
        soon = timezone.now() + AN_HOUR  # no job of a test expires meanwhile
        rows = [
            Job(model="a", inputs="x", status=Status.SUCCEEDED, owner=cls.owner, key_start=KEY) for _ in range(NUMBER)
        ]
        rows += [Job(model="a", inputs="x", expires_at=soon, owner=cls.owner) for _ in range(5)]
        Job.objects.bulk_create(rows)

    def plan(self, jobs: QuerySet[Job, Any]) -> str:
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":  # a table this small would be scanned in any case
                cursor.execute("SET LOCAL enable_seqscan = off")
        return jobs.explain()

    def assert_uses(self, indexes: str, jobs: QuerySet[Job, Any]) -> None:
        self.assertRegex(self.plan(jobs), rf"\b({indexes})\b")

    def test_admission_counts_waiting_jobs_alone(self) -> None:
        low = Priority.LOW
        self.assert_uses(OF_QUEUED, QUEUED.filter(model="a", priority__lte=low).order_by().values("pk"))
        own = QUEUED.filter(owner=self.owner, priority__lte=low).order_by().values("pk")
        self.assert_uses(OF_QUEUED, own)

    def test_the_reconciler_reads_running_and_overdue_jobs_alone(self) -> None:
        self.assert_uses(f"job_expiring|{OF_QUEUED}", QUEUED.filter(expires_at__lte=Now()).order_by())
        overdue = Q(worker=None) | Q(model="a", started_at__lt=Now() - AN_HOUR)
        self.assert_uses("job_by_status", Job.objects.filter(overdue, status=Status.RUNNING).order_by())

    def test_what_becomes_of_a_whole_is_read_from_its_parts_alone(self) -> None:
        parts = Job.objects.filter(whole=uuid4())
        self.assert_uses("job_by_whole", parts.filter(status__in=("failed", "expired", "cancelled")).order_by("place"))
        self.assert_uses("job_by_whole", parts.filter(status__in=("queued", "running"), place__lt=9).order_by())
        wholes = Job.objects.filter(parts__gt=0, status__in=("queued", "running"))
        self.assert_uses("job_in_parts", wholes.order_by())

    def test_the_admin_finds_the_jobs_of_a_request_and_of_a_batch(self) -> None:
        self.assert_uses("job_by_request", Job.objects.filter(request_id="r1").order_by("-id")[:20])
        failed = Job.objects.filter(error_code="crashed", error_code__gt="")
        self.assert_uses("job_by_error", failed.order_by("-id")[:20])
        self.assert_uses("job_by_worker", Job.objects.filter(worker=uuid4()).order_by("-id")[:20])
        others = Job.objects.exclude(priority=Priority.NORMAL)
        for priority in (Priority.HIGH, Priority.LOW):
            self.assert_uses("job_by_priority", others.filter(priority=priority).order_by("-id")[:20])
        self.assert_uses("job_by_batch", Job.objects.filter(batch=uuid4()).order_by("-id")[:20])

    def test_lists_read_one_page_from_its_index(self) -> None:
        for index, rows in (
            ("job_by_owner", Job.objects.filter(owner=self.owner)),
            ("job_by_key", Job.objects.filter(key_start=KEY)),
            ("job_by_status", Job.objects.filter(status=Status.FAILED)),
            ("job_of_model", Job.objects.filter(model="b", whole=None)),
        ):
            with self.subTest(index):
                self.assert_uses(index, rows.order_by("-id")[:20])

    @skipUnless(connection.vendor == "sqlite", "which keeps no statistics")
    def test_notices_are_looked_for_among_those_that_are_pending(self) -> None:
        with CaptureQueriesContext(connection) as queries:
            list(jobs.find_undelivered_webhooks())
            delivery.lease_due_webhooks(10)
        looks = [query["sql"] for query in queries if '"status" IN' in query["sql"]]
        self.assertEqual(len(looks), 2)
        for look in looks:
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN QUERY PLAN {look}")
                first, *_ = [line for *_, line in cursor.fetchall() if "inference" in line or "U0" in line]
            self.assertIn("webhook", first)
