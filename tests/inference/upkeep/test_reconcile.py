import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock, patch
from uuid import UUID, uuid4

from django.conf import settings
from django.db import ProgrammingError
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now
from django.test import TransactionTestCase, override_settings

from inference import errors
from inference.broker import address, publisher, redis_client
from inference.broker.messages import JobMessage
from inference.catalog.lookup import get_catalog
from inference.fields.ids import make_first_id
from inference.models import Job, Status, Worker, WorkerState
from inference.store import transitions
from inference.store.job_messages import make_message, send_messages
from inference.upkeep import heartbeat_monitor, reconcile
from inference.upkeep.heartbeat_monitor import Observer
from tests.clocks import database_clock
from tests.conditions import PATIENCE_S, ago

MODEL = "embeddings"
OLD_S = 3 * PATIENCE_S  # of a message that nobody waits for any more
_number = itertools.count()


def make_job(**values: Any) -> Job:
    values = {"model": MODEL, "inputs": "text", "created_at": ago(OLD_S), "published_at": ago(OLD_S), **values}
    return Job.objects.create(id=UUID(int=make_first_id(values["created_at"]).int + next(_number)), **values)


def make_worker(**values: Any) -> Worker:
    return Worker.objects.create(
        **{"name": "w", "pid": 1, "state": WorkerState.READY, "model_names": [MODEL], **values}
    )


@override_settings(WORKER_SILENT_S=PATIENCE_S)
class ReconcileTests(TransactionTestCase):
    """The broker is the real one of the test run. What is young stays so."""

    def setUp(self) -> None:
        self.now_s = 1000.0
        self.enterContext(patch.multiple(reconcile, RESEND_S=PATIENCE_S, HELD_S=2 * PATIENCE_S))
        self.enterContext(patch.object(heartbeat_monitor, "SET_S", PATIENCE_S / 2))  # a slow test sets no clock
        self.queue = get_catalog()[MODEL].queue
        redis_client.get_client().flushdb()

    def queued_messages(self) -> int:
        return publisher.count_messages([self.queue])[self.queue]

    def running(self, worker: Worker, **values: Any) -> Job:
        return make_job(status=Status.RUNNING, worker=worker.pk, batch=uuid4(), started_at=ago(5), **values)

    def test_a_silent_worker_is_gone_and_its_jobs_are_given_back_and_sent_again(self) -> None:
        worker = make_worker(heartbeat_at=ago(settings.WORKER_SILENT_S + 5))
        job = self.running(worker)
        reconcile.reconcile()
        worker.refresh_from_db()
        job.refresh_from_db()
        self.assertEqual(worker.state, WorkerState.GONE)
        self.assertEqual((job.status, job.batch, job.recoveries), (Status.QUEUED, None, 1))
        self.assertEqual(self.queued_messages(), 1)

    def test_so_is_one_that_was_heard_last_at_a_whole_second(self) -> None:
        """A file compares moments as texts: with the milliseconds that it keeps there is one behind that second."""
        silent = make_worker()
        Worker.objects.update(heartbeat_at=RawSQL("'2026-01-01 00:00:00.000'", []))
        with self.assertLogs("inference.upkeep.reconcile", "WARNING"):
            reconcile.reconcile()
        silent.refresh_from_db()
        self.assertEqual(silent.state, WorkerState.GONE)

    def test_a_queue_that_the_broker_refuses_keeps_no_job_of_the_others_from_being_sent_once(self) -> None:
        catalog = {**get_catalog(), "refused": replace(get_catalog()[MODEL], name="refused")}
        redis_client.get_client().set(address.make_queue_key("inference.refused", 2), "no list")
        make_job(model="refused", published_at=None)
        sent = make_job(published_at=None)
        with patch.object(reconcile, "get_catalog", return_value=catalog):
            for _ in range(2):
                with self.assertLogs("inference.upkeep.reconcile", "WARNING"):
                    reconcile.reconcile()
        sent.refresh_from_db()
        self.assertIsNotNone(sent.published_at)
        self.assertEqual(self.queued_messages(), 1)

    def test_a_step_that_fails_keeps_no_other_from_its_turn(self) -> None:
        lost = make_job(published_at=None)
        whole = make_job(status=Status.RUNNING, parts=1)
        make_job(status=Status.CANCELLED, whole=whole.pk, place=0)
        with (
            patch.object(transitions, "expire_jobs", side_effect=ProgrammingError("refused")),
            self.assertLogs("inference.upkeep.reconcile", "WARNING"),
            self.assertRaises(ProgrammingError),
        ):
            reconcile.reconcile()
        for job in (lost, whole):
            job.refresh_from_db()
        self.assertIsNotNone(lost.published_at)
        self.assertEqual(whole.status, Status.CANCELLED)

    def test_the_jobs_of_a_living_worker_are_left_alone(self) -> None:
        job = self.running(make_worker())
        reconcile.reconcile()
        job.refresh_from_db()
        self.assertEqual((job.status, job.recoveries), (Status.RUNNING, 0))

    def test_a_job_past_its_lease_is_given_back_though_its_worker_lives(self) -> None:
        job, other = self.running(make_worker(), lease_until=ago(1)), self.running(make_worker(), lease_until=ago(-60))
        reconcile.reconcile()
        job.refresh_from_db()
        other.refresh_from_db()
        self.assertEqual((job.status, job.recoveries), (Status.QUEUED, 1))
        self.assertEqual((other.status, other.recoveries), (Status.RUNNING, 0))

    def test_after_an_outage_nobody_is_judged_before_all_could_be_heard(self) -> None:
        worker = make_worker(heartbeat_at=ago(settings.WORKER_SILENT_S + 5))
        job = self.running(worker, recoveries=settings.MAX_RECOVERIES - 1, lease_until=ago(1))
        reconcile.reconcile(database_up_s=settings.WORKER_SILENT_S / 2)
        worker.refresh_from_db()
        job.refresh_from_db()
        self.assertEqual((worker.state, job.status), (WorkerState.READY, Status.RUNNING))

    def seen(self, observer: Observer, after_s: float = 0.0) -> None:
        """A round of a process whose own clock has moved on."""
        self.now_s += after_s
        with patch.object(heartbeat_monitor, "time", Mock(monotonic=lambda: self.now_s)):
            reconcile.reconcile(observer=observer)

    def test_a_clock_that_is_set_forward_ends_no_worker_and_no_lease(self) -> None:
        worker, observer = make_worker(), Observer()
        job = self.running(worker, lease_until=ago(-60), recoveries=settings.MAX_RECOVERIES - 1)
        self.seen(observer)
        with database_clock(3600):
            for _ in range(2):
                self.seen(observer, after_s=2.0)
        worker.refresh_from_db()
        job.refresh_from_db()
        self.assertEqual((worker.state, job.status), (WorkerState.READY, Status.RUNNING))

    def test_what_was_lost_before_a_clock_was_set_forward_is_found_as_late_as_without(self) -> None:
        worker, observer = make_worker(), Observer()
        of_dead = self.running(worker, lease_until=ago(-OLD_S))
        left = self.running(make_worker(name="living"), lease_until=ago(-60))  # for 65 s
        self.seen(observer)
        with database_clock(3600):
            self.seen(observer, after_s=2.0)
        with database_clock(3600 + settings.WORKER_SILENT_S):  # it goes on beside the process's
            Worker.objects.filter(name="living").update(heartbeat_at=Now())
            self.seen(observer, after_s=settings.WORKER_SILENT_S)
        worker.refresh_from_db()
        self.assertEqual(worker.state, WorkerState.GONE)
        self.assertEqual(Worker.objects.get(name="living").state, WorkerState.READY)
        for job in (of_dead, left):
            job.refresh_from_db()
            self.assertEqual((job.status, job.recoveries), (Status.QUEUED, 1))

    def test_what_was_lost_before_a_clock_was_set_back_is_found_as_late_as_without(self) -> None:
        worker, observer = make_worker(heartbeat_at=ago(-OLD_S)), Observer()
        job = self.running(worker)
        self.seen(observer)
        job.refresh_from_db()
        self.assertEqual(job.status, Status.RUNNING)
        self.seen(observer, after_s=settings.WORKER_SILENT_S + 1)
        worker.refresh_from_db()
        job.refresh_from_db()
        self.assertEqual((worker.state, job.status), (WorkerState.GONE, Status.QUEUED))

    def test_a_worker_that_is_heard_lives_whatever_moment_it_writes(self) -> None:
        worker, observer = make_worker(), Observer()
        for moment in (ago(-OLD_S), ago(OLD_S), ago(2 * OLD_S)):
            Worker.objects.update(heartbeat_at=moment)
            self.seen(observer, after_s=settings.WORKER_SILENT_S)
        worker.refresh_from_db()
        self.assertEqual(worker.state, WorkerState.READY)

    def test_a_lease_from_before_a_clock_was_set_back_begins_anew(self) -> None:
        job = self.running(make_worker(), lease_until=ago(-OLD_S - 60))
        Job.objects.update(started_at=ago(-OLD_S))
        reconcile.reconcile()
        job.refresh_from_db()
        assert job.lease_until
        self.assertLess(job.lease_until, ago(-OLD_S / 2))
        self.assertGreater(job.lease_until, ago())

    def test_the_stop_of_a_worker_does_not_count_against_the_jobs_that_it_ran(self) -> None:
        last = settings.MAX_RECOVERIES - 1
        stopped = self.running(make_worker(state=WorkerState.STOPPED), recoveries=last)
        killed_late = self.running(
            make_worker(state=WorkerState.STOPPING, heartbeat_at=ago(settings.WORKER_SILENT_S + 5)), recoveries=last
        )
        reconcile.reconcile()
        for job in (stopped, killed_late):
            job.refresh_from_db()
            self.assertEqual((job.status, job.recoveries), (Status.QUEUED, last))

    def test_a_job_given_back_too_often_fails_as_lost(self) -> None:
        job = self.running(make_worker(state=WorkerState.GONE), recoveries=settings.MAX_RECOVERIES - 1)
        reconcile.reconcile()
        job.refresh_from_db()
        self.assertEqual((job.status, job.error_code), (Status.FAILED, errors.Lost.code))
        self.assertIsNotNone(job.finished_at)

    def test_before_its_last_recovery_a_job_is_sent_to_be_run_alone(self) -> None:
        jobs = [make_job(recoveries=count) for count in range(settings.MAX_RECOVERIES)]
        self.assertEqual([make_message(job).hints["alone"] for job in jobs], [False, False, True])

    def test_a_queued_job_past_its_deadline_expires(self) -> None:
        job = make_job(expires_at=ago(1))
        reconcile.reconcile()
        job.refresh_from_db()
        self.assertEqual((job.status, job.error_code), (Status.EXPIRED, errors.Expired.code))

    def test_a_job_accepted_without_a_broker_is_sent(self) -> None:
        make_job(published_at=None, created_at=ago(2))
        reconcile.reconcile()
        self.assertEqual(self.queued_messages(), 1)
        reconcile.reconcile()
        self.assertEqual(self.queued_messages(), 1)

    def test_queued_jobs_are_sent_again_when_the_broker_lost_everything(self) -> None:
        for _ in range(3):
            make_job()
        reconcile.reconcile()
        self.assertEqual(self.queued_messages(), 3)

    def test_a_message_that_may_still_be_on_its_way_is_not_doubled(self) -> None:
        make_job(created_at=ago(1), published_at=ago(1))
        reconcile.reconcile()
        self.assertEqual(self.queued_messages(), 0)

    def test_a_job_that_a_worker_may_hold_is_not_doubled(self) -> None:
        make_job(published_at=ago(reconcile.RESEND_S + 1))
        make_worker(held=1)
        reconcile.reconcile()
        self.assertEqual(self.queued_messages(), 0)

    def test_a_lost_message_is_sent_again_though_a_worker_is_always_busy_with_other_models(self) -> None:
        make_job(published_at=ago(reconcile.HELD_S + 1))
        make_worker(held=1, replicas_busy=1)
        reconcile.reconcile()
        self.assertEqual(self.queued_messages(), 1)

    def test_it_is_a_warning_only_if_more_are_sent_again_than_workers_hold(self) -> None:
        for held, level in ((2, "INFO"), (1, "WARNING")):
            with self.subTest(held):
                for _ in range(2):
                    make_job()
                Worker.objects.all().delete()
                make_worker(held=held)
                with self.assertLogs("inference.upkeep.reconcile", "INFO") as logs:
                    reconcile.reconcile()
                self.assertEqual([record.levelname for record in logs.records], [level])
                Job.objects.all().delete()
                redis_client.get_client().flushdb()

    def test_a_job_that_was_passed_by_younger_ones_is_sent_again(self) -> None:
        sent_at = ago(reconcile.RESEND_S + 1)
        passed, next_ = (make_job(created_at=ago(age), published_at=sent_at) for age in (60, 20))
        make_worker(held=1, reached={MODEL: {"2": ago(30).timestamp()}})
        reconcile.reconcile()
        passed.refresh_from_db()
        next_.refresh_from_db()
        assert passed.published_at
        self.assertGreater(passed.published_at, sent_at)
        self.assertEqual(next_.published_at, sent_at)

    def test_a_job_that_another_worker_may_hold_has_not_been_passed(self) -> None:
        sent_at = ago(reconcile.RESEND_S + 1)
        passed, held = (make_job(created_at=ago(age), published_at=sent_at) for age in (90, 60))
        for name, holds, age in (("a", 1, 30), ("b", 1, 70), ("idle", 0, 3600)):
            make_worker(name=name, held=holds, reached={MODEL: {"2": ago(age).timestamp()}})
        reconcile.reconcile()
        sent_again = set(Job.objects.exclude(published_at=sent_at).values_list("pk", flat=True))
        self.assertEqual(sent_again, {passed.pk})
        self.assertNotIn(held.pk, sent_again)

    def test_never_more_messages_wait_than_jobs(self) -> None:
        """As when a clock was set back, by which the workers have come further than any job that waits."""
        jobs = [make_job() for _ in range(3)]
        send_messages([make_message(job) for job in jobs[1:]])
        make_worker(held=1, reached={MODEL: {"2": ago(-OLD_S).timestamp()}})
        for _ in range(3):
            Job.objects.update(published_at=ago(OLD_S))
            reconcile.reconcile()
            self.assertEqual(self.queued_messages(), 3)

    def test_a_model_with_messages_that_all_wait_keeps_no_lost_one_of_another_from_being_sent(self) -> None:
        catalog = {**get_catalog(), "other": replace(get_catalog()[MODEL], name="other")}
        send_messages([make_message(make_job(priority=1)) for _ in range(2)])
        make_worker(reached={MODEL: {"1": ago(-OLD_S).timestamp()}})
        make_job(model="other")
        with patch.object(reconcile, "MOST", 2), patch.object(reconcile, "get_catalog", return_value=catalog):
            reconcile.reconcile()
        queue = address.get_queue_name("other")
        self.assertEqual((self.queued_messages(), publisher.count_messages([queue])[queue]), (2, 1))

    def test_a_message_that_was_sent_before_the_clock_was_set_back_is_found_when_it_is_lost(self) -> None:
        make_job(created_at=ago(-OLD_S), published_at=ago(-OLD_S))
        make_job(created_at=ago(-OLD_S), published_at=None)
        reconcile.reconcile()
        self.assertEqual(self.queued_messages(), 2)

    def waiting(self, step: int) -> list[str]:
        """The ids of the messages of a priority, the next one first."""
        texts = redis_client.get_client().lrange(address.make_queue_key(self.queue, step), 0, -1)
        return [json.loads(text)["headers"]["id"] for text in reversed(texts)]

    def test_after_a_loss_a_high_job_goes_before_all_low_ones_and_the_oldest_of_these_first(self) -> None:
        low = [str(make_job(priority=3).id) for _ in range(reconcile.CHUNK + 10)]
        high = make_job(priority=1)
        reconcile.reconcile()
        later = make_job(priority=1, created_at=ago(), published_at=ago())
        send_messages([make_message(later)])
        self.assertEqual(self.waiting(0), [])
        self.assertEqual(self.waiting(1), [str(high.id), str(later.id)])
        self.assertEqual(self.waiting(3), low)

    def test_a_round_sends_high_jobs_before_it_reaches_its_bound(self) -> None:
        for _ in range(3):
            make_job(priority=3)
        high = make_job(priority=1)
        with patch.object(reconcile, "MOST", 2):
            reconcile.reconcile()
        self.assertEqual(self.waiting(1), [str(high.id)])
        self.assertEqual(self.queued_messages(), 2)

    def test_a_lost_high_job_is_sent_again_though_low_ones_wait(self) -> None:
        low = [make_job(priority=3) for _ in range(2)]
        high = make_job(priority=1)
        send_messages(list(map(make_message, low)))
        reconcile.reconcile()
        self.assertEqual((self.waiting(1), len(self.waiting(3))), ([str(high.id)], 2))

    def test_two_reconcilers_do_no_harm(self) -> None:
        job = self.running(make_worker(state=WorkerState.GONE))
        reconcile.reconcile()
        reconcile.reconcile()
        job.refresh_from_db()
        self.assertEqual((job.status, job.recoveries), (Status.QUEUED, 1))

    def test_what_was_sent_before_a_failure_is_marked_and_not_sent_twice(self) -> None:
        for number in range(5):
            make_job(published_at=None, created_at=ago(20 - number))
        to_broker = publisher.publish_messages
        chunks: list[Sequence[JobMessage]] = []

        def fails_at_the_second(messages: Sequence[JobMessage]) -> None:
            chunks.append(messages)
            if len(chunks) == 2:
                raise errors.BrokerUnavailable("refused")
            to_broker(messages)

        with patch.object(reconcile, "CHUNK", 2):
            with patch.object(publisher, "publish_messages", fails_at_the_second):
                reconcile.reconcile()
            self.assertEqual(self.queued_messages(), 3)
            reconcile.reconcile()
        self.assertEqual(self.queued_messages(), 5)
        self.assertFalse(Job.objects.filter(published_at=None).exists())

    def test_jobs_that_are_sent_again_in_chunks_keep_their_order(self) -> None:
        made = [make_job(published_at=None, created_at=ago(20 - number)) for number in range(5)]
        with patch.object(reconcile, "CHUNK", 2):
            reconcile.reconcile()
        texts = redis_client.get_client().lrange(address.make_queue_key(self.queue, made[0].priority), 0, -1)
        ids = [json.loads(text)["headers"]["id"] for text in reversed(texts)]
        self.assertEqual(ids, [str(job.pk) for job in made])

    def test_a_broker_that_is_away_leaves_the_rows_for_the_next_round(self) -> None:
        job = make_job(published_at=None, created_at=ago(2))
        with patch.object(publisher, "publish_messages", side_effect=errors.BrokerUnavailable("away")):
            reconcile.reconcile()
        job.refresh_from_db()
        self.assertIsNone(job.published_at)
        reconcile.reconcile()
        self.assertEqual(self.queued_messages(), 1)
