"""The threads of a worker's main process that keep its row alive and do its housekeeping."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import Mock, patch
from uuid import uuid4

from celery.platforms import EX_FAILURE
from django.test import TransactionTestCase, override_settings
from django.utils import timezone

from inference import clock
from inference.broker import publisher
from inference.catalog.lookup import get_catalog
from inference.errors import BrokerUnavailable
from inference.models import Job, Status, Worker, WorkerState
from inference.upkeep import reconcile
from inference.worker.celery_worker import setup
from inference.worker.maintenance import housekeeping as upkeep_module
from inference.worker.maintenance.heartbeat import LATE_S, Heartbeat, WorkerSnapshot
from inference.worker.maintenance.housekeeping import Housekeeping
from inference.worker.maintenance.watchdog import STALLED_S
from inference.worker.replicas.devices import Plan
from inference.worker.replicas.registry import ReplicaRegistry
from tests.conditions import PATIENCE_S, eventually


def snapshot(**values: Any) -> WorkerSnapshot:
    idle = {
        "state": "ready", "model_names": ["embeddings"], "replicas": {}, "catalog": {}, "error": "", "connected": True,
        "replicas_ready": 1, "replicas_busy": 0, "held": 0, "finished": 0, "speeds": {}, "reached": {},
    }  # fmt: skip
    return WorkerSnapshot(
        **{**idle, "generation": {}, "costs": {}, "looped_at": time.monotonic(), **values}
    )  # just now


def make_heartbeat(make_snapshot: Callable[[], WorkerSnapshot] = snapshot) -> Heartbeat:
    plan = Plan(worker=uuid4(), devices=("cpu",), replicas=1, threads=1)
    heartbeat = Heartbeat(plan, "w", make_snapshot)
    heartbeat.register_worker()
    return heartbeat


@override_settings(WORKER_HEARTBEAT_S=0.05)
class HeartbeatTests(TransactionTestCase):
    def test_a_round_of_upkeep_that_takes_long_delays_no_heartbeat(self) -> None:
        heartbeat = make_heartbeat()
        housekeeping = Housekeeping(heartbeat, ReplicaRegistry(heartbeat.plan, get_catalog()))
        reached, go_on = threading.Event(), threading.Event()

        def takes_long(**_: object) -> None:
            reached.set()
            go_on.wait(PATIENCE_S)

        with patch.object(reconcile, "reconcile", takes_long):
            self.start(heartbeat)
            self.start(housekeeping)
            self.addCleanup(go_on.set)
            self.assertTrue(reached.wait(PATIENCE_S))
            row = Worker.objects.get(pk=heartbeat.plan.worker)
            eventually(lambda: Worker.objects.filter(pk=row.pk, heartbeat_at__gt=row.heartbeat_at).exists())
            self.assertFalse(go_on.is_set())

    def test_what_expires_in_this_worker_is_recorded_before_the_next_round(self) -> None:
        heartbeat = make_heartbeat()
        housekeeping = Housekeeping(heartbeat, ReplicaRegistry(heartbeat.plan, get_catalog()))
        with patch.object(upkeep_module, "ROUND_S", 600):
            self.start(housekeeping)
            eventually(lambda: housekeeping.sweeper.next_at_s, "the first round is over")
            late = timezone.now() - timedelta(minutes=1)  # by the database's clock too
            job = Job.objects.create(model="m", inputs="x", expires_at=late)
            housekeeping.mark_expired_soon()
            eventually(lambda: Job.objects.filter(pk=job.pk, status=Status.EXPIRED).exists())

    def test_the_database_answers_for_as_long_as_no_heartbeat_came_late(self) -> None:
        self.enterContext(patch("time.monotonic", return_value=time.monotonic()))  # no heartbeat is late by chance
        heartbeat = make_heartbeat()
        heartbeat.answering_since -= 1000
        self.assertTrue(heartbeat.try_to_beat())
        self.assertGreaterEqual(heartbeat.database_up_s, 1000)
        heartbeat.beaten_at -= LATE_S  # as after an outage
        self.assertEqual(heartbeat.database_up_s, 0)
        self.assertTrue(heartbeat.try_to_beat())
        self.assertLess(heartbeat.database_up_s, LATE_S)

    def test_a_worker_that_is_stopping_says_so_with_its_next_heartbeat(self) -> None:
        heartbeat = make_heartbeat()
        heartbeat.note_stop()
        self.start(heartbeat)
        eventually(lambda: Worker.objects.filter(pk=heartbeat.plan.worker, state=WorkerState.STOPPING).exists())

    def test_a_worker_that_ends_of_an_error_has_its_jobs_counted_as_lost_as_one_that_is_killed(self) -> None:
        for exit_code, is_leaving, expected in (
            (EX_FAILURE, False, WorkerState.GONE),
            (EX_FAILURE, True, WorkerState.STOPPED),
            (None, False, WorkerState.STOPPED),
            ("shutdown", False, WorkerState.STOPPED),
        ):
            with self.subTest(exit_code, is_leaving=is_leaving):
                Worker.objects.all().delete()
                heartbeat = make_heartbeat()
                heartbeat.leaving = is_leaving
                setup.stop_service(Mock(exitcode=exit_code, service=heartbeat))
                self.assertEqual(Worker.objects.get().state, expected)
                values = {"status": Status.RUNNING, "worker": heartbeat.plan.worker, "batch": uuid4()}
                job = Job.objects.create(model="m", inputs="x", **values)
                reconcile.reconcile()
                job.refresh_from_db()
                self.assertEqual((job.status, job.recoveries), (Status.QUEUED, int(expected == WorkerState.GONE)))

    def test_a_heartbeat_on_its_way_does_not_take_back_that_the_worker_is_gone(self) -> None:
        begun = threading.Event()

        def wait_for_the_end() -> WorkerSnapshot:
            begun.set()
            ended.wait(1.0)
            return snapshot()

        heartbeat = make_heartbeat(wait_for_the_end)
        ended = heartbeat._stopping  # noqa: SLF001 - it is set before the row is written
        self.start(heartbeat)
        self.assertTrue(begun.wait(PATIENCE_S))
        setup.stop_service(Mock(exitcode=EX_FAILURE, service=heartbeat))
        heartbeat.join()
        self.assertEqual(Worker.objects.get().state, WorkerState.GONE)

    def test_a_gpu_that_another_worker_of_the_host_has_is_said_in_the_log(self) -> None:
        first, second = (
            Heartbeat(Plan(worker=uuid4(), devices=("cuda:0",), replicas=1, threads=1), name, snapshot)
            for name in ("a@host", "b@host")
        )
        with self.assertNoLogs("inference.worker.maintenance.heartbeat", "WARNING"):
            first.register_worker()
        with self.assertLogs("inference.worker.maintenance.heartbeat", "WARNING") as logs:
            second.register_worker()
        self.assertIn("a@host computes on cuda:0 too", logs.output[0])

    def test_a_worker_that_lost_its_row_registers_again_unless_it_leaves(self) -> None:
        heartbeat = make_heartbeat()
        Worker.objects.all().delete()  # as after a restore of an older backup
        self.assertTrue(heartbeat.try_to_beat())
        self.assertTrue(heartbeat.try_to_beat())
        self.assertEqual(Worker.objects.get(pk=heartbeat.plan.worker).state, WorkerState.READY)
        Worker.objects.all().delete()
        heartbeat.note_stop()
        self.assertTrue(heartbeat.try_to_beat())
        self.assertFalse(Worker.objects.exists())

    def test_the_clock_is_measured_for_as_long_as_the_worker_lives(self) -> None:
        heartbeat = make_heartbeat()
        with patch.object(clock, "measure_offset") as measured:
            heartbeat.try_to_beat()
        measured.assert_called_once()

    def test_the_watchdog_counts_the_queues_that_are_consumed_only(self) -> None:
        heartbeat = make_heartbeat(lambda: snapshot(model_names=["embeddings", "sentiment"]))
        replicas = ReplicaRegistry(heartbeat.plan, get_catalog())
        replicas.runnable = frozenset({"embeddings", "fill-mask"})  # sentiment's starts again; a queue is refused
        housekeeping = Housekeeping(heartbeat, replicas)
        with patch.object(publisher, "count_messages", return_value={}) as counted:
            housekeeping.end_broken_worker()
        counted.assert_called_once_with([get_catalog()["embeddings"].queue])

    def test_the_watchdog_does_not_judge_while_the_broker_counts_queues_and_takes_nothing(self) -> None:
        heartbeat = make_heartbeat(lambda: snapshot(looped_at=time.monotonic() - 10 * STALLED_S))  # it hangs
        housekeeping = Housekeeping(heartbeat, ReplicaRegistry(heartbeat.plan, get_catalog()))
        housekeeping.watchdog.looked_at = time.monotonic()  # just now
        with (
            patch.object(publisher, "ping_broker", side_effect=BrokerUnavailable("no room")),
            patch("os._exit") as ended,
        ):
            self.assertRaises(BrokerUnavailable, housekeeping.end_broken_worker)
        ended.assert_not_called()

    def start(self, thread: Heartbeat | Housekeeping) -> None:
        thread.start()
        self.addCleanup(thread.join, PATIENCE_S)
        self.addCleanup(thread.stop)
