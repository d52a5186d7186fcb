"""What becomes of one message in the consumer; real workers are in tests/e2e and tests/faults."""

import json
import math
import time
from types import SimpleNamespace
from typing import Any
from unittest import TestCase
from unittest.mock import Mock, patch
from uuid import uuid4

import kombu
import kombu.utils.functional
from celery.exceptions import InvalidTaskError
from kombu.message import Message

from inference.broker import messages
from inference.broker.messages import JobMessage
from inference.catalog.specs import ModelSpec
from inference.worker import consumer
from inference.worker.calls import READY, Loaded
from inference.worker.consumer import LONGEST_AWAY_S, JobConsumer
from inference.worker.devices import Plan
from inference.worker.dispatch import Dispatcher
from inference.worker.replicas import Replicas
from inference.worker.subscriptions import Subscriptions
from inference.worker.tasks import run
from project.celery import app

PID = 4711
CATALOG = {name: ModelSpec(name=name, engine="x:Y") for name in ("a", "b")}


class ConsumerTests(TestCase):
    def setUp(self) -> None:
        self.replicas = Replicas(Plan(worker=uuid4(), devices=("cpu",), replicas=1, threads=1), CATALOG)
        self.replicas.started(0, PID)
        self.load(a=READY, b=READY)
        self.dispatcher = Dispatcher(self.replicas, Mock(return_value=None))
        self.dispatcher.connected = True
        self.events: list[str] = []
        self.step = consumer.BatchingStep.__new__(consumer.BatchingStep)
        self.step.reported = None
        self.consumer = SimpleNamespace(
            hostname="w", conninfo=kombu.Connection("memory://"), dispatcher=self.dispatcher,
            app=SimpleNamespace(amqp=SimpleNamespace(queues=self)),
            controller=SimpleNamespace(heartbeat=SimpleNamespace(changed=lambda: None)),
            cancel_task_queue=self.leave, add_task_queue=lambda queue: self.events.append(f"began {queue}"),
            channel_errors=(), initial_prefetch_count=0, qos=SimpleNamespace(),
        )  # fmt: skip
        self.step.subscriptions = Subscriptions(self.consumer)
        self.consumed = {spec.queue for spec in CATALOG.values()}
        self.on_message = consumer.strategy(
            run, app,
            SimpleNamespace(
                dispatcher=self.dispatcher, hostname="w", event_dispatcher=None, connection_errors=(),
                dispatch_soon=lambda: None,
            ),
        )  # fmt: skip

    def receive(
        self, *, model: str = "a", queue: str = "", headers: dict[str, Any] | None = None, **hints: Any
    ) -> None:
        job = JobMessage(
            job_id=str(uuid4()), model=model, queue=f"inference.{model}", group="", size=1, length=1, priority=2,
            created_at=time.time(), expires_at=None,
        )  # fmt: skip
        arguments, known, embed = messages.body(job)
        message = Message(
            body=json.dumps([arguments, {**known, **hints}, embed]), headers=messages.headers(job) | (headers or {}),
            content_type="application/json", content_encoding="utf-8", accept={"application/json"},
            delivery_info={"routing_key": queue or job.queue}, delivery_tag=job.job_id,
        )  # fmt: skip
        self.on_message(
            message, None, ack=lambda *_: None, reject=lambda *_: self.events.append("given back"), callbacks=()
        )

    def load(self, **models: str) -> None:
        told = {CATALOG[name].digest: state for name, state in models.items()}
        self.replicas.loaded(Loaded(pid=PID, models=told))

    def test_a_job_is_held(self) -> None:
        self.receive()
        self.assertEqual(len(self.dispatcher.backlog.held), 1)

    def test_hints_that_no_job_has_drop_the_message_and_nothing_else(self) -> None:
        tried: tuple[dict[str, Any], ...] = (
            {"size": math.inf}, {"length": 10**300}, {"priority": math.inf}, {"priority": 10**300}, {"size": "many"},
            {"created_at": 10**400}, {"created_at": math.nan}, {"expires_at": math.nan}, {"model": ["a"]},
            {"headers": {"id": [1]}}, {"headers": {"id": {}}},
        )  # fmt: skip
        for hints in tried:
            with self.subTest(str(hints)[:40]), self.assertRaises(InvalidTaskError):
                self.receive(**hints)
        self.assertFalse(self.dispatcher.backlog.held)

    def test_a_message_of_a_model_that_cannot_be_run_now_goes_back_once_its_queue_is_left(self) -> None:
        self.follow()
        self.load(a=READY, b="too large.")
        self.receive(model="b")
        self.follow()
        self.receive(model="b")  # was on its way
        self.follow()
        self.assertEqual(self.events, ["left inference.b", "given back", "given back"])

    def test_a_message_of_such_a_model_in_another_queue_is_dropped(self) -> None:
        self.load(a=READY, b="too large.")
        with self.assertRaises(InvalidTaskError):
            self.receive(model="b", queue="inference.a")

    def test_no_queue_is_begun_while_a_worker_that_left_its_queues_ends_its_batches(self) -> None:
        self.consumed = set()
        self.dispatcher.forget_messages()
        self.follow()
        self.assertEqual(self.events, [])
        self.dispatcher.connected = True
        self.follow()
        self.assertEqual(sorted(self.events), ["began inference.a", "began inference.b"])

    def follow(self) -> None:
        """As the event loop does after each message and twice a second."""
        self.step.follow(self.consumer)

    @property
    def consume_from(self) -> set[str]:
        return self.consumed

    def __contains__(self, queue: str) -> bool:
        return queue in {spec.queue for spec in CATALOG.values()}

    def leave(self, queue: str) -> None:
        self.consumed = self.consumed - {queue}
        self.events.append(f"left {queue}")


class Enough(Exception):
    pass


class LostBrokerTests(TestCase):
    def test_a_broker_that_was_away_for_minutes_is_found_within_seconds(self) -> None:
        slept: list[float] = []

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            if sum(slept) > 180:
                raise Enough

        worker = JobConsumer.__new__(JobConsumer)
        worker.app, worker.first_connection_attempt, worker.broker_connection_retry_attempt = app, False, 0
        with (
            patch.object(kombu.utils.functional, "sleep", sleep),
            self.assertLogs("celery.worker.consumer.consumer", "ERROR") as said, self.assertRaises(Enough),
        ):  # fmt: skip
            worker.ensure_connected(kombu.Connection("redis://127.0.0.1:1"))
        self.assertGreater(len(said.output), 180 / LONGEST_AWAY_S - 1)
