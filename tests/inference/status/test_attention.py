"""What needs attention is said in words, with the thing to do, and no more once it is well again."""

from __future__ import annotations

import datetime
import shutil
import threading
from types import SimpleNamespace
from typing import Any
from unittest import skipUnless
from unittest.mock import patch

from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.test import TestCase, TransactionTestCase, override_settings

from inference import clock
from inference.broker import publisher
from inference.catalog import lookup
from inference.errors import BrokerUnavailable
from inference.fields.ids import make_first_id
from inference.fields.worker_documents import LOADING
from inference.figures.tally_rows import floor_to_tick, make_datetime
from inference.models import (
    Bulk,
    Figure,
    Grain,
    Job,
    PausedModel,
    Status,
    Webhook,
    WebhookState,
    Worker,
    WorkerState,
)
from inference.status import attention, workers
from inference.status.attention import infrastructure, locks
from inference.status.attention.item import AttentionItem
from inference.values.priority import Priority
from tests.conditions import PATIENCE_S, ago, eventually


def figure(age_s: float, model: str = "embeddings", **tally: object) -> datetime.datetime:
    """Make one of a tick so long ago. Return its start."""
    start = make_datetime(floor_to_tick(ago(age_s).timestamp()))
    Figure.objects.create(grain=Grain.TICK, start=start, model=model, tally=tally)
    return start


DAY_S = 86_400.0
HAS_IT = {"0": {"device": "cpu", "models": {"embeddings": "ready"}}}
NEVER_SLOW = patch.object(infrastructure, "SLOW_S", PATIENCE_S)


@override_settings(WORKER_SILENT_S=PATIENCE_S, WORKER_HEARTBEAT_S=PATIENCE_S)
class AttentionCase(TestCase):
    def setUp(self) -> None:
        self.enterContext(NEVER_SLOW)
        disk = patch.object(shutil, "disk_usage", return_value=SimpleNamespace(total=2**40, free=2**39))
        self.disk = self.enterContext(disk)
        self.worker = self.make_worker()

    def make_worker(self, **values: Any) -> Worker:
        known = {"name": "first@host", "pid": 1, "state": WorkerState.READY, "model_names": ["embeddings"]}
        return Worker.objects.create(**{**known, "replicas_ready": 1, **values})

    def change(self, **values: Any) -> None:
        Worker.objects.filter(pk=self.worker.pk).update(**values)

    def named(self) -> list[str]:
        return [item.code for item in attention.find_items()]

    def only(self, code: str, *facts: str) -> AttentionItem:
        found = attention.find_items()
        self.assertEqual([item.code for item in found], [code])
        for fact in facts:
            self.assertIn(fact, f"{found[0].text} {found[0].todo}")
        self.assertIn(code, attention.CODES)
        return found[0]


class TestItems(AttentionCase):
    def test_nothing_is_said_when_all_is_well(self) -> None:
        Job.objects.create(model="embeddings", inputs="x")
        self.assertEqual(attention.find_items(), [])

    def test_a_database_that_is_away(self) -> None:
        with patch.object(connection, "cursor", side_effect=OperationalError("connection refused")):
            self.only("DatabaseAway", "connection refused", "Start it")
        self.assertEqual(self.named(), [])

    def test_a_slow_database_and_a_slow_broker(self) -> None:
        with patch.object(infrastructure, "SLOW_S", -1.0):
            self.assertEqual(self.named(), ["DatabaseSlow", "BrokerSlow"])

    def test_a_broker_that_is_away(self) -> None:
        with patch.object(publisher, "ping_broker", side_effect=BrokerUnavailable("no")):
            self.only("BrokerAway", "does not answer", "Start it")

    def test_a_disk_that_fills(self) -> None:
        self.disk.return_value = SimpleNamespace(total=2**40, free=2**29)
        self.assertEqual(set(self.named()), {"DiskFills"})
        self.assertIn("512 MiB left", attention.find_items()[0].text)

    def test_a_worker_that_is_gone_and_what_it_served_until_one_of_its_name_is_back(self) -> None:
        self.make_worker(name="other@host")
        self.change(state=WorkerState.GONE)
        self.only("WorkerGone", "first@host has been gone since", "It served embeddings.", "start it again")
        self.make_worker()
        self.assertEqual(self.named(), [])

    def test_a_worker_that_is_silent_is_said_before_anybody_has_marked_it(self) -> None:
        self.make_worker(name="other@host")
        self.change(heartbeat_at=ago(2 * PATIENCE_S))
        self.only("WorkerGone", "first@host")
        self.change(heartbeat_at=ago(4000))
        self.assertEqual(self.named(), [])

    def test_a_worker_that_was_stopped_is_not_missed(self) -> None:
        self.make_worker(name="other@host")
        self.change(state=WorkerState.STOPPED)
        self.assertEqual(self.named(), [])

    def test_a_model_that_nobody_serves_and_why(self) -> None:
        self.change(model_names=[], replicas={"0": {"models": {"embeddings": "no weights"}}})
        self.only("ModelUnserved", "No worker serves embeddings: no weights")
        Worker.objects.all().delete()
        self.only("ModelUnserved", "no living worker serves it.", "Start a worker")

    def test_a_worker_that_lacks_some_or_is_cut_off(self) -> None:
        self.make_worker(name="other@host")
        self.change(state=WorkerState.DEGRADED, error="big: no room")
        self.only("WorkerDegraded", "first@host", "big: no room")
        self.change(state=WorkerState.READY, error="", connected=False)
        self.only("WorkerCutOff", "first@host", "broker")

    def folded(self) -> list[tuple[str, bool]]:
        return [(item.code, item.follows) for item in attention.find_items()]

    def test_what_follows_from_a_cause_is_said_below_it(self) -> None:
        names = [*lookup.get_catalog(), "other"]
        self.change(state=WorkerState.GONE, model_names=names)
        Job.objects.bulk_create(Job(model="embeddings", inputs="x") for _ in range(1000))
        self.assertEqual(self.folded(), [("WorkerGone", False), ("ModelUnserved", True), ("QueueFull", True)])
        self.make_worker(model_names=[], pid=2, is_to_rest=True, replicas=HAS_IT)
        self.assertEqual(self.folded(), [("WorkerDrained", False), ("ModelUnserved", True), ("QueueFull", True)])
        Worker.objects.all().delete()
        self.make_worker(connected=False)
        self.assertEqual(self.folded(), [("WorkerCutOff", False), ("ModelUnserved", True), ("QueueFull", True)])
        with patch.object(publisher, "ping_broker", side_effect=BrokerUnavailable("no")):
            self.assertEqual(
                self.folded(),
                [("BrokerAway", False), ("ModelUnserved", True), ("WorkerCutOff", True), ("QueueFull", True)],
            )
        Worker.objects.all().delete()
        self.assertEqual(self.folded(), [("ModelUnserved", False), ("QueueFull", True)])
        self.make_worker()
        PausedModel.objects.create(model="embeddings")
        self.assertEqual(self.folded(), [("ModelPaused", False), ("QueueFull", True)])

    def test_models_that_nobody_serves_for_the_same_causes_are_one_item(self) -> None:
        two = {name: lookup.get_catalog()["embeddings"] for name in ("embeddings", "second")}
        with patch.object(lookup, "get_catalog_or_empty", lambda: two):
            self.change(state=WorkerState.GONE, model_names=list(two))
            self.make_worker(name="other@host", state=WorkerState.GONE, model_names=list(two))
            gone = ("WorkerGone", False)
            self.assertEqual(self.folded(), [("ModelUnserved", False), ("ModelUnserved", True), gone, gone])

    def test_the_cure_is_that_of_the_reason_for_which_nobody_serves_a_model(self) -> None:
        cases: tuple[tuple[dict[str, Any], str], ...] = (
            (
                {"replicas": {"0": {"device": "cpu", "models": {"embeddings": LOADING}}}},
                "until it is loaded",
            ),
            ({"replicas": {"0": {"device": "cpu", "models": {"embeddings": "no weights"}}}}, "Correct what"),
            ({"replicas": HAS_IT, "is_to_rest": True}, "Resume a worker"),
            ({"model_names": ["embeddings"], "connected": False, "replicas": {}}, "connects again by itself"),
            ({"model_names": [], "connected": True}, "started for other models"),
            ({"model_names": ["embeddings"], "state": WorkerState.GONE}, "Start the worker again"),
        )
        for values, todo in cases:
            with self.subTest(todo):
                self.change(**{"model_names": [], "is_to_rest": False, **values})
                [item] = [item for item in attention.find_items() if item.code == "ModelUnserved"]
                self.assertIn(todo, item.todo)

    @override_settings(WORKER_SILENT_S=4 * PATIENCE_S, WORKER_HEARTBEAT_S=PATIENCE_S / workers.LATE_BEATS)
    def test_a_queue_that_waits_for_a_silent_worker_gives_that_as_the_reason(self) -> None:
        figure(60, "", now={"samples": 1, "queued": {"embeddings": 0}})
        Job.objects.bulk_create(Job(model="embeddings", inputs="x") for _ in range(30))
        self.change(replicas_busy=1)
        self.only("QueueGrows", "Jobs arrive faster than the workers run them")
        self.change(heartbeat_at=ago(2 * PATIENCE_S))
        self.only("QueueGrows", "30 jobs of embeddings wait", "No heartbeat came from first@host for some seconds")
        Figure.objects.all().delete()
        Job.objects.update(created_at=ago(40))
        self.assertEqual(self.named(), [])

    def test_a_models_file_that_is_refused(self) -> None:
        self.change(catalog={"problem": "models.toml, line 3: no."})
        self.only("ModelsFileRefused", "models.toml, line 3: no.")

    def test_a_queue_that_grows_and_since_when(self) -> None:
        _, fewest, *_ = [
            figure(age_s, "", now={"samples": 1, "queued": {"embeddings": count}})
            for age_s, count in ((240, 3), (180, 2), (120, 9), (60, 20))
        ]
        jobs = Job.objects.bulk_create(Job(model="embeddings", inputs="x") for _ in range(30))
        self.only("QueueGrows", "30 jobs of embeddings wait", f"at {fewest:%H:%M:%S} UTC there were 2")
        self.change(replicas_busy=1)
        self.only("QueueGrows", "Add workers or replicas")
        Job.objects.filter(pk__in=[job.pk for job in jobs[:15]]).delete()
        self.assertEqual(self.named(), [])

    def test_a_queue_that_is_full_is_said_for_as_long_as_it_is(self) -> None:
        for age_s in (80_000, 1200, 600, 60):
            figure(age_s, "", now={"samples": 1, "queued": {"embeddings": 1000}})
        jobs = Job.objects.bulk_create(Job(model="embeddings", inputs="x") for _ in range(1001))
        self.only("QueueFull", "is full: 1,001 jobs wait, and max_queued is 1,000", "no replica runs them")
        self.change(replicas_busy=1)
        figure(60, refused={"queue_full": 12_000, "overloaded": 141, "too_many_queued": 7})
        self.only("QueueFull", "12,141 requests were refused", "Add workers or replicas")
        Job.objects.filter(pk__in=[job.pk for job in jobs[:50]]).delete()
        self.only("QueueFull", "embeddings", "12,141 requests were refused")
        Figure.objects.filter(model="embeddings").update(start=ago(400))
        self.assertEqual(self.named(), [])

    def test_jobs_of_low_priority_fill_no_queue(self) -> None:
        figure(60, "", now={"samples": 1, "queued": {"embeddings": 1000}})
        Job.objects.bulk_create(Job(model="embeddings", inputs="x", priority=Priority.LOW) for _ in range(1000))
        self.assertEqual(self.named(), [])

    def test_a_queue_that_has_grown_is_said_until_it_falls(self) -> None:
        figure(7200, "", now={"samples": 40, "queued": {"embeddings": 80}})
        for age_s in (3000, 1200, 600, 60):
            figure(age_s, "", now={"samples": 1, "queued": {"embeddings": 400}})
        jobs = Job.objects.bulk_create(Job(model="embeddings", inputs="x", created_at=ago(90)) for _ in range(400))
        self.change(replicas_busy=1)
        self.only("QueueGrows", "400 jobs of embeddings wait", "there were 2.")
        Job.objects.filter(pk__in=[job.pk for job in jobs[:50]]).delete()
        self.assertEqual(self.named(), [])
        Job.objects.bulk_create(Job(model="embeddings", inputs="x") for _ in range(50))
        Job.objects.update(created_at=ago(1))
        self.assertEqual(self.named(), [])

    def test_nothing_is_said_of_what_was_before_the_clock_was_set_back(self) -> None:
        figure(-2 * DAY_S, refused={"queue_full": 12_000}, ended={"failed timed_out": 900})
        figure(-2 * DAY_S, "", now={"samples": 1, "queued": {"embeddings": 0}})
        figure(60, "", now={"samples": 1, "queued": {"embeddings": 400}})
        Job.objects.bulk_create(Job(model="embeddings", inputs="x") for _ in range(400))
        self.make_worker(name="other@host", state=WorkerState.GONE, heartbeat_at=ago(-2 * DAY_S))
        self.assertEqual(self.named(), [])

    def test_a_job_that_waits_though_nothing_runs(self) -> None:
        job = Job.objects.create(model="embeddings", inputs="x", created_at=ago(40))
        with patch.object(clock, "estimate_now_s", return_value=job.created_at.timestamp() + 40):
            self.only("QueueStuck", "the oldest for 40 s", "no replica is busy")
        self.change(replicas_busy=1)
        self.assertEqual(self.named(), [])

    def test_jobs_of_a_model_that_is_in_no_file_any_more_are_said_to_wait_for_ever(self) -> None:
        job = Job.objects.create(model="removed", inputs="x", created_at=ago(40))
        with patch.object(clock, "estimate_now_s", return_value=job.created_at.timestamp() + 40):
            item = self.only(
                "ModelUnserved", "1 job of removed waits", "the models file no longer lists", "cancel the jobs"
            )
            self.assertNotIn("broker", item.todo)
            self.change(model_names=["embeddings", "removed"])  # this process has not read the newest file yet
            self.only("QueueStuck")

    def test_failures_above_their_usual_share(self) -> None:
        figure(3600, ended={"succeeded": 900, "failed timed_out": 100})
        figure(60, ended={"succeeded": 80, "failed timed_out": 12, "failed out_of_memory": 8})
        item = self.only("FailuresUnusual", "8 jobs of embeddings failed with out_of_memory", "8%", "0%", "max_length")
        self.assertEqual(item.about, ("failed", "embeddings", "out_of_memory"))
        Figure.objects.filter(start__gte=ago(120)).update(start=ago(400))
        self.assertEqual(self.named(), [])

    def test_a_large_share_of_failures_is_said_for_as_long_as_it_holds(self) -> None:
        for share in (100, 60, 25):
            with self.subTest(share=share):
                Figure.objects.all().delete()
                for age_s in (80_000, 20_000, 3000, 600, 60):
                    figure(age_s, ended={"succeeded": 100 - share, "failed engine_error": share})
                self.only("FailuresUnusual", f"{share} jobs of embeddings failed with engine_error", f"{share}%")

    def test_a_large_share_of_several_errors_together_is_said(self) -> None:
        for age_s in (3000, 60):
            figure(age_s, ended={"succeeded": 70, "failed engine_error": 15, "failed crashed": 15})
        self.assertEqual(self.named(), ["FailuresUnusual", "FailuresUnusual"])

    def test_a_model_with_few_jobs_that_fails_them_all_is_said_by_its_last_ones(self) -> None:
        for age_s in (1500, 1200, 900, 600, 400):
            figure(age_s, ended={"failed engine_error": 1})
        self.only("FailuresUnusual", "5 jobs of embeddings failed with engine_error", "100%")
        figure(60, ended={"succeeded": 20})
        self.assertEqual(self.named(), [])

    def test_failures_are_over_once_the_jobs_since_would_hardly_succeed_by_chance(self) -> None:
        for failed, ended, enough in ((10, 10, 1), (6, 10, 4), (12, 40, 9)):
            with self.subTest(f"{failed} of {ended}"):
                Figure.objects.all().delete()
                figure(1000, ended={"failed engine_error": failed, "succeeded": ended - failed})
                for age_s in range(60 * enough, 60, -60):
                    figure(age_s, ended={"succeeded": 1})
                self.assertEqual(self.named(), ["FailuresUnusual"])
                figure(0, ended={"succeeded": 1})
                self.assertEqual(self.named(), [])

    def test_jobs_that_nothing_ran_do_not_show_that_failures_are_over(self) -> None:
        figure(1000, ended={"failed crashed": 10})
        figure(400, ended={"cancelled": 4, "expired": 4})
        self.only("FailuresUnusual", "10 jobs of embeddings failed with crashed")

    def test_a_model_that_fails_all_of_few_jobs_in_several_ways_is_said(self) -> None:
        figure(400, ended={"failed engine_error": 3, "failed crashed": 2})
        self.assertEqual(self.named(), ["FailuresUnusual", "FailuresUnusual"])

    def test_failures_are_compared_with_the_time_before_they_began(self) -> None:
        figure(20_000, ended={"succeeded": 990, "failed invalid_input": 10})
        for age_s in (10_000, 5000, 1000, 60):
            figure(age_s, ended={"succeeded": 900, "failed invalid_input": 100})
        self.only("FailuresUnusual", "100 jobs of embeddings failed with invalid_input", "10%", "1%")

    def test_inputs_that_are_refused_at_a_steady_rate_are_no_news_but_where_they_are_most(self) -> None:
        for age_s in (20_000, 5000, 1000, 60):
            figure(age_s, ended={"succeeded": 75, "failed invalid_input": 25})
        self.assertEqual(self.named(), [])
        Figure.objects.update(tally={"ended": {"succeeded": 40, "failed invalid_input": 60}})
        self.only("FailuresUnusual", "60 jobs of embeddings failed with invalid_input", "60%")

    def test_a_few_failures_are_nothing_to_speak_of(self) -> None:
        figure(60, ended={"failed engine_error": 4})
        self.assertEqual(self.named(), [])

    def test_a_model_that_is_paused_by_whom_and_that_nobody_serves_it_is_no_news(self) -> None:
        self.change(model_names=[])
        PausedModel.objects.create(model="embeddings", paused_by=User.objects.create_user("anna"))
        item = self.only("ModelPaused", "embeddings has been paused since", "by anna", "Resume the model")
        self.assertEqual(item.about, ("paused", "embeddings"))
        PausedModel.objects.update(paused_by=None)
        self.assertNotIn(" by ", self.only("ModelPaused").text)

    def test_a_worker_that_is_drained(self) -> None:
        drained = {"is_to_rest": True, "state": WorkerState.DRAINED, "model_names": []}
        self.make_worker(name="other@host", replicas={"0": {"device": "cpu", "models": {"embeddings": "ready"}}})
        self.change(**drained)
        self.only("WorkerDrained", "first@host is drained", "Resume it")
        Worker.objects.update(**drained)
        self.assertEqual(self.named(), ["ModelUnserved", "WorkerDrained", "WorkerDrained"])
        self.assertIn("No worker serves embeddings: its worker is drained.", attention.find_items()[0].text)

    def test_a_replica_that_ends_again_and_again_and_a_device_that_is_withdrawn(self) -> None:
        self.change(replicas={"0": {"device": "cuda:0", "ended": 4}, "1": {"device": "cuda:1", "ended": 5}})
        self.only("ReplicaCrashes", "Replica 1 of first@host, on cuda:1, ended 5 times", "OOM killer")
        self.change(replicas={"0": {"device": "cuda:1", "withdrawn_s": 40}, "1": {"device": "cuda:1"}})
        self.only("DeviceWithdrawn", "cuda:1 of first@host gets no work for 40 s", "nvidia-smi")

    def notice(self, url: str = "https://hooks.example/a", finished_s: float = 1, **values: Any) -> Webhook:
        job = Job.objects.create(model="embeddings", inputs="x", status=Status.SUCCEEDED, finished_at=ago(finished_s))
        return Webhook.objects.create(job=job, url=url, **values)

    def test_notices_that_cannot_be_delivered(self) -> None:
        later: dict[str, Any] = {"attempts": 1, "due_at": ago(-3), "last_error": "answered 503"}
        for number in range(4):
            self.notice(f"https://hooks.example/{number}", **later)
            self.notice("https://other.example", attempts=1, state=WebhookState.DELIVERED)
        self.assertEqual(self.named(), [])
        self.notice(**later)
        self.only("WebhooksFail", "delivered to hooks.example, 5 wait: answered 503", "send them now")
        Webhook.objects.update(state=WebhookState.DELIVERED)
        self.notice(**{**later, "attempts": 2})
        self.only("WebhooksFail", "1 wait")

    def test_notices_that_nobody_sends(self) -> None:
        waits = self.notice(finished_s=60, due_at=ago(90))
        self.only("WebhooksWait", "1 wait", "start inference-webhooks")
        Job.objects.filter(pk=waits.job_id).update(finished_at=ago(5))
        self.assertEqual(self.named(), [])

    def test_file_batches_that_no_process_works_on(self) -> None:
        """Each has an open bulk, from before a minute at least."""
        bulk = Bulk.objects.create(pk=make_first_id(ago(90)), model="", total=1, is_open=True)
        Bulk.objects.create(model="", total=1, is_open=True)
        self.only("FileBatchesWait", "1 wait", "start inference-batches")
        for worked_at, found in ((ago(90), 1), (ago(5), 0), (ago(-3600), 1)):
            Bulk.objects.filter(pk=bulk.pk).update(worked_at=worked_at)
            self.assertEqual(self.named(), ["FileBatchesWait"] * found)
        Bulk.objects.filter(pk=bulk.pk).update(is_open=False)
        self.assertEqual(self.named(), [])


class TestLocks(TransactionTestCase):
    """What another connection holds."""

    def hold(self, statement: str) -> Any:
        other = connection.copy()
        self.addCleanup(other.close)
        if connection.vendor == "postgresql":
            other.set_autocommit(False)
        other.cursor().execute(statement)
        return other

    @skipUnless(connection.vendor == "sqlite", "one lock for all who write")
    def test_a_file_that_is_locked(self) -> None:
        self.assertEqual(locks.find_lock_problem(), "")
        other = self.hold("BEGIN IMMEDIATE")
        with NEVER_SLOW, patch.object(locks, "PATIENCE_S", 0.05):
            item = attention.find_items()[0]
        other.cursor().execute("ROLLBACK")
        self.assertEqual(locks.find_lock_problem(), "")
        self.assertEqual((item.code, item.text[:36]), ("DatabaseLocked", "The database accepts no writes: data"))
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout")
            self.assertEqual(cursor.fetchone(), (4000,))

    @skipUnless(connection.vendor == "postgresql", "a lock a table")
    def test_a_table_that_is_locked(self) -> None:
        other = self.hold("LOCK TABLE inference_job IN ACCESS EXCLUSIVE MODE")

        def wait() -> None:
            Job.objects.count()
            connection.close()

        waiting = threading.Thread(target=wait)
        waiting.start()
        with patch.object(locks, "PATIENCE_S", 0.0):
            why = eventually(locks.find_lock_problem, "somebody waits")
            self.assertRegex(why, r"a statement waits for \d+ s for a lock of process \d+\.")
            self.assertEqual(attention.find_items()[-1].code, "DatabaseLocked")
            other.rollback()
            waiting.join()
            self.assertEqual(locks.find_lock_problem(), "")
