import datetime
import time
from collections.abc import Sequence
from io import StringIO
from typing import Any
from unittest.mock import patch
from uuid import UUID

from django.conf import settings
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import TestCase
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inference import clock
from inference.fields.ids import make_first_id
from inference.models import Bulk, Job, Mark, Status, Webhook, Worker, WorkerState
from inference.status import attention
from inference.upkeep import retention
from tests.conditions import ago


def days_ago(days: float) -> datetime.datetime:
    return ago(days=days)


def id_of(days: float, number: int = 0) -> UUID:
    return UUID(int=make_first_id(days_ago(days)).int + number)


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
        self.assertEqual(retention.Sweep().remove_chunk(), 1)
        self.assertEqual(set(Job.objects.all()), kept)
        self.assertFalse(Webhook.objects.exists())
        self.assertFalse(Bulk.objects.exists())

    def test_a_part_is_kept_as_long_as_its_whole_waits(self) -> None:
        whole = self.make(status=Status.RUNNING, parts=2)
        parts = {self.make(1, whole=whole.pk, place=0), self.make(2, whole=whole.pk, place=1, status=Status.QUEUED)}
        self.assertEqual(retention.Sweep().remove_chunk(), 0)
        self.assertEqual(set(Job.objects.all()), {whole, *parts})
        Job.objects.update(status=Status.SUCCEEDED)
        self.assertEqual(retention.Sweep().remove_chunk(), 3)

    def test_a_job_is_kept_for_the_retention_time_from_its_end_on(self) -> None:
        kept = self.make(finished_at=ago(hours=1))  # it waited for longer than jobs are kept
        self.make(1, finished_at=days_ago(OLD))
        self.assertEqual(retention.Sweep().remove_chunk(), 1)
        self.assertEqual(list(Job.objects.all()), [kept])

    def test_the_parts_of_a_list_are_kept_as_long_as_it_is(self) -> None:
        whole = self.make(parts=1, finished_at=ago(hours=1))
        part = self.make(1, whole=whole.pk, place=0, finished_at=days_ago(OLD))
        self.assertEqual(retention.Sweep().remove_chunk(), 0)
        self.assertEqual(set(Job.objects.all()), {whole, part})

    def test_the_clock_of_a_host_removes_nothing(self) -> None:
        kept = self.make(days=0.0, finished_at=ago())
        real, real_now = time.time, timezone.now
        with (
            patch.object(time, "time", lambda: real() + HOST_AHEAD.total_seconds()),
            patch.object(timezone, "now", lambda: real_now() + HOST_AHEAD),
        ):
            self.assertEqual(retention.Sweep().remove_chunk(), 0)
        self.assertEqual(list(Job.objects.all()), [kept])

    def test_old_jobs_are_found_by_their_ids(self) -> None:
        """Not by a look at each job that there is."""
        Job.objects.bulk_create(
            Job(id=id_of(1, number), model="m", inputs="x", status=Status.SUCCEEDED, finished_at=ago())
            for number in range(300)
        )
        self.make(finished_at=days_ago(OLD))
        with CaptureQueriesContext(connection) as queries:
            retention.Sweep().remove_chunk()
        look = next(query["sql"] for query in queries if "finished_at" in query["sql"])
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":  # a table this small would be scanned in any case
                cursor.execute("SET LOCAL enable_seqscan = off")
                cursor.execute(f"EXPLAIN {look}")
                self.assertRegex(str(cursor.fetchall()), r"Index Cond: \(.*id < ")
            else:
                cursor.execute(f"EXPLAIN QUERY PLAN {look}")
                self.assertRegex(str(cursor.fetchall()), r"SEARCH inference_job USING INDEX \w+ \(.*id<\?\)")

    def test_what_is_to_be_kept_for_longer_than_ids_reach_is_kept(self) -> None:
        kept = self.make()
        for days in (36_500, 1_000_000):
            with self.subTest(days), self.settings(JOB_RETENTION_DAYS=days):
                self.assertEqual(retention.Sweep().remove_chunk(), 0)
        self.assertEqual(list(Job.objects.all()), [kept])

    def test_no_inputs_and_outputs_are_read(self) -> None:
        bulk = Bulk.objects.create(id=id_of(OLD), model="m", total=1)
        Webhook.objects.create(job=self.make(bulk=bulk), url="https://example.com/")
        with CaptureQueriesContext(
            connection,
        ) as queries:
            retention.Sweep().remove_chunk()
        read = " ".join(query["sql"] for query in queries if query["sql"].startswith("SELECT"))
        self.assertIn('"id"', read)
        for column in ("inputs", "output", "rejected"):
            self.assertNotIn(column, read)


class StoppedSweepTests(TestCase):
    """A clock that is set forward, also the database's, makes all finished jobs old at once."""

    def setUp(self) -> None:
        self.sweeper = retention.Sweeper()
        self.others = [self.make(number, 1.0) for number in range(8)]

    def make(self, number: int, days: float) -> Job:
        moment = days_ago(days)
        values = {"model": "m", "inputs": "x", "status": Status.SUCCEEDED, "finished_at": moment}
        return Job.objects.create(id=UUID(int=make_first_id(moment).int + number), **values)

    def sweep(self) -> None:
        self.sweeper.next_at_s = 0.0
        self.sweeper.sweep()

    def codes(self) -> Sequence[str]:
        return [item.code for item in attention.find_items()]

    def test_a_sweep_that_would_remove_an_unusual_share_removes_nothing_and_says_so(self) -> None:
        self.make(8, OLD)
        worker = Worker.objects.create(name="w", pid=1, state=WorkerState.GONE, heartbeat_at=days_ago(OLD))
        with self.assertLogs("inference.upkeep.retention", "WARNING") as logs:
            self.sweep()
        self.assertIn("1 of 9 finished jobs", logs.output[0])
        self.assertEqual(Job.objects.count(), 9)
        self.assertTrue(Worker.objects.filter(pk=worker.pk).exists())
        (item,) = [item for item in attention.find_items() if item.code == "RetentionStopped"]
        self.assertIn("1 of 9 finished jobs", item.text)
        self.assertIn("remove_old_jobs --force", item.todo)

    def test_it_is_said_for_as_long_as_it_is_so(self) -> None:
        self.make(8, OLD)
        for _ in range(2):
            with self.assertLogs("inference.upkeep.retention", "WARNING"):
                self.sweep()
            self.assertIn("RetentionStopped", self.codes())
        self.assertEqual(Mark.objects.count(), 1)
        with self.settings(JOB_RETENTION_DAYS=2 * OLD):
            self.sweep()
        self.assertNotIn("RetentionStopped", self.codes())

    def test_after_three_days_of_saying_so_it_goes_on_whatever_the_database_s_clock_does(self) -> None:
        self.make(8, OLD)
        start_s = time.monotonic()
        for days, left in ((0.0, 9), (2.9, 9), (3.1, 8)):
            with patch("time.monotonic", return_value=start_s + days * 86_400):
                self.sweep()
            self.assertEqual(Job.objects.count(), left)
        self.assertNotIn("RetentionStopped", self.codes())

    def test_the_three_days_begin_again_where_a_sweep_found_nothing_unusual(self) -> None:
        job = self.make(8, OLD)
        start_s = time.monotonic()
        for days in (0.0, 2.0, 4.0):
            with patch("time.monotonic", return_value=start_s + days * 86_400):
                Job.objects.filter(pk=job.pk).update(status=Status.RUNNING if days == 2.0 else Status.SUCCEEDED)
                self.sweep()
        self.assertEqual(Job.objects.count(), 9)

    def test_it_is_not_said_any_more_once_jobs_are_kept_for_ever(self) -> None:
        self.make(8, OLD)
        with self.assertLogs("inference.upkeep.retention", "WARNING"):
            self.sweep()
        with self.settings(JOB_RETENTION_DAYS=0):
            self.sweep()
        self.assertNotIn("RetentionStopped", self.codes())

    def test_no_more_are_counted_than_prove_that_they_are_too_many(self) -> None:
        """With millions of them each worker would read all of its table, and longer than a statement may take."""
        for number in range(8, 40):
            self.make(number, OLD)
        with patch.object(retention, "COUNTED", 3):
            self.assertIn("5 or more of 40 finished jobs", retention.Sweep().clock_warning)

    def test_an_operator_lets_it_go_on(self) -> None:
        self.make(8, OLD)
        with self.assertLogs("inference.upkeep.retention", "WARNING"):
            self.sweep()
        with self.assertRaisesRegex(CommandError, "1 of 9 finished jobs.* --force"):
            call_command("remove_old_jobs", stdout=StringIO())
        self.assertEqual(Job.objects.count(), 9)
        call_command("remove_old_jobs", force=True, stdout=StringIO())
        self.assertEqual(set(Job.objects.all()), set(self.others))
        self.assertNotIn("RetentionStopped", self.codes())

    def test_what_is_due_since_a_moment_is_removed_whatever_share_that_is(self) -> None:
        """As the last jobs of a service that nobody uses any more."""
        Job.objects.all().delete()
        self.make(0, settings.JOB_RETENTION_DAYS + 0.01)
        self.sweep()
        self.assertFalse(Job.objects.exists())

    def test_a_small_share_is_removed_however_old_it_is(self) -> None:
        self.make(8, 2 * OLD)
        self.make(9, 2.0)
        self.make(10, 3.0)
        self.sweep()
        self.assertEqual(Job.objects.count(), 10)

    def test_a_clock_that_is_set_forward_in_the_middle_of_a_sweep_adds_nothing_to_it(self) -> None:
        self.others += [self.make(number, 1.0) for number in range(8, 30)]
        for number in range(30, 33):
            self.make(number, OLD)
        with patch.object(retention, "CHUNK", 2):
            self.sweep()
            self.assertEqual(Job.objects.count(), 31)
            with patch.object(clock, "read_database_clock", lambda: timezone.now() + HOST_AHEAD):
                self.sweeper.sweep()
        self.assertEqual(set(Job.objects.all()), set(self.others))


class EndedWorkersTests(TestCase):
    def make(self, state: WorkerState, days: float) -> Worker:
        return Worker.objects.create(name="w", pid=1, state=state, heartbeat_at=days_ago(days))

    def test_the_rows_of_workers_that_ended_long_ago_go(self) -> None:
        self.make(WorkerState.STOPPED, 8)
        self.make(WorkerState.GONE, 8)
        kept = {self.make(WorkerState.GONE, 6), self.make(WorkerState.READY, 8)}
        retention.Sweeper().sweep()
        self.assertEqual(set(Worker.objects.all()), kept)


class LogInsTests(TestCase):
    def test_sessions_that_are_over_and_what_was_done_long_ago_go(self) -> None:
        sessions = [Session.objects.create(session_key=f"{days}", expire_date=days_ago(days)) for days in (1, -1)]
        user = User.objects.create_user("operator")
        done = [
            LogEntry.objects.create(user=user, action_flag=CHANGE, action_time=days_ago(days), object_repr="a job")
            for days in (366, 364)
        ]
        retention.Sweeper().sweep()
        self.assertEqual(list(Session.objects.all()), sessions[1:])
        self.assertEqual(list(LogEntry.objects.all()), done[1:])
