import datetime
import time
from typing import Any
from unittest.mock import patch
from uuid import UUID

from django.conf import settings
from django.db import connection
from django.test import TestCase
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inference.fields.ids import first_id_at
from inference.models import Bulk, Job, Status, Webhook, Worker, WorkerState
from inference.upkeep import retention
from tests.conditions import ago


def days_ago(days: float) -> datetime.datetime:
    return ago(days=days)


def id_of(days: float, number: int = 0) -> UUID:
    return UUID(int=first_id_at(days_ago(days)).int + number)


OLD = settings.JOB_RETENTION_DAYS + 1
HOST_AHEAD = datetime.timedelta(days=OLD)


class OldJobsTests(TestCase):
    def make(self, number: int = 0, days: float = OLD, status: Status = Status.SUCCEEDED, **values: Any) -> Job:
        return Job.objects.create(id=id_of(days, number), model="m", inputs="x", status=status, **values)

    def test_finished_jobs_go_with_what_refers_to_them_and_others_stay(self) -> None:
        bulk = Bulk.objects.create(id=id_of(OLD), model="m", total=1)
        old = self.make(bulk=bulk)
        Webhook.objects.create(job=old, url="https://example.com/")
        kept = {self.make(1, status=Status.QUEUED), self.make(2, days=1)}
        self.assertEqual(retention.remove_old(), 1)
        self.assertEqual(set(Job.objects.all()), kept)
        self.assertFalse(Webhook.objects.exists())
        self.assertFalse(Bulk.objects.exists())

    def test_a_part_is_kept_as_long_as_its_whole_waits(self) -> None:
        whole = self.make(status=Status.RUNNING, parts=2)
        parts = {self.make(1, whole=whole.pk, place=0), self.make(2, whole=whole.pk, place=1, status=Status.QUEUED)}
        self.assertEqual(retention.remove_old(), 0)
        self.assertEqual(set(Job.objects.all()), {whole, *parts})
        Job.objects.update(status=Status.SUCCEEDED)
        self.assertEqual(retention.remove_old(), 3)

    def test_a_job_is_kept_for_the_retention_time_from_its_end_on(self) -> None:
        kept = self.make(finished_at=ago(hours=1))  # it waited for longer than jobs are kept
        self.make(1, finished_at=days_ago(OLD))
        self.assertEqual(retention.remove_old(), 1)
        self.assertEqual(list(Job.objects.all()), [kept])

    def test_the_parts_of_a_list_are_kept_as_long_as_it_is(self) -> None:
        whole = self.make(parts=1, finished_at=ago(hours=1))
        part = self.make(1, whole=whole.pk, place=0, finished_at=days_ago(OLD))
        self.assertEqual(retention.remove_old(), 0)
        self.assertEqual(set(Job.objects.all()), {whole, part})

    def test_the_clock_of_a_host_removes_nothing(self) -> None:
        kept = self.make(days=0.0, finished_at=ago())
        real, real_now = time.time, timezone.now
        with (
            patch.object(time, "time", lambda: real() + HOST_AHEAD.total_seconds()),
            patch.object(timezone, "now", lambda: real_now() + HOST_AHEAD),
        ):
            self.assertEqual(retention.remove_old(), 0)
        self.assertEqual(list(Job.objects.all()), [kept])

    def test_old_jobs_are_found_by_their_ids(self) -> None:
        """Not by a look at each job that there is."""
        Job.objects.bulk_create(
            Job(id=id_of(1, number), model="m", inputs="x", status=Status.SUCCEEDED, finished_at=ago())
            for number in range(300)
        )
        self.make(finished_at=days_ago(OLD))
        with CaptureQueriesContext(connection) as queries:
            retention.remove_old()
        look = next(query["sql"] for query in queries if "finished_at" in query["sql"])
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":  # a table this small would be scanned in any case
                cursor.execute("SET LOCAL enable_seqscan = off")
                cursor.execute(f"EXPLAIN {look}")
                self.assertRegex(str(cursor.fetchall()), r"Index Cond: \(.*id < ")
            else:
                cursor.execute(f"EXPLAIN QUERY PLAN {look}")
                self.assertRegex(str(cursor.fetchall()), r"SEARCH inference_job USING INDEX \w+ \(.*id<\?\)")

    def test_what_is_to_be_kept_for_longer_than_ids_can_tell_is_kept(self) -> None:
        kept = self.make()
        for days in (36_500, 1_000_000):
            with self.subTest(days), self.settings(JOB_RETENTION_DAYS=days):
                self.assertEqual(retention.remove_old(), 0)
        self.assertEqual(list(Job.objects.all()), [kept])

    def test_no_inputs_and_outputs_are_read(self) -> None:
        bulk = Bulk.objects.create(id=id_of(OLD), model="m", total=1)
        Webhook.objects.create(job=self.make(bulk=bulk), url="https://example.com/")
        with CaptureQueriesContext(
            connection,
        ) as queries:
            retention.remove_old()
        read = " ".join(query["sql"] for query in queries if query["sql"].startswith("SELECT"))
        self.assertIn('"id"', read)
        for column in ("inputs", "output", "rejected"):
            self.assertNotIn(column, read)


class EndedWorkersTests(TestCase):
    def make(self, state: WorkerState, days: float) -> Worker:
        return Worker.objects.create(name="w", pid=1, state=state, heartbeat_at=days_ago(days))

    def test_the_rows_of_workers_that_ended_long_ago_go(self) -> None:
        self.make(WorkerState.STOPPED, 8)
        self.make(WorkerState.GONE, 8)
        kept = {self.make(WorkerState.GONE, 6), self.make(WorkerState.READY, 8)}
        retention.Sweeper().sweep()
        self.assertEqual(set(Worker.objects.all()), kept)
