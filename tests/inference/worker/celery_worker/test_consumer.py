"""What becomes of one message in the consumer; real workers are in tests/e2e and tests/faults."""

import json
import math
from types import SimpleNamespace
from typing import Any, cast
from unittest import TestCase
from unittest.mock import Mock, patch
from uuid import uuid4

import kombu
import kombu.utils.functional
from celery.exceptions import InvalidTaskError
from celery.worker import state
from kombu.message import Message

from inference.broker import messages
from inference.broker.messages import MOST_PACKED, JobMessage
from inference.catalog.specs import ModelSpec
from inference.worker.calls import READY, LoadReport
from inference.worker.celery_worker import strategy
from inference.worker.celery_worker.consumer import LONGEST_AWAY_S, DispatchLoop, JobConsumer
from inference.worker.celery_worker.tasks import run
from inference.worker.replicas.devices import Plan
from inference.worker.replicas.registry import ReplicaRegistry
from inference.worker.scheduling.held_jobs import Batch
from project.celery import app
from tests.inference.worker.test_dispatcher import make_dispatcher

PID = 4711
CATALOG = {name: ModelSpec(name=name, engine="x:Y") for name in ("a", "b")}


class ConsumerTests(TestCase):
    def setUp(self) -> None:
        self.replicas = ReplicaRegistry(Plan(worker=uuid4(), devices=("cpu",), replicas=1, threads=1), CATALOG)
        self.replicas.note_start(0, PID)
        self.load(a=READY, b=READY)
        self.dispatcher = make_dispatcher(self.replicas, Mock())
        self.dispatcher.note_connection()
        self.events: list[str] = []
        self.consumer = SimpleNamespace(
            hostname="w",
            conninfo=kombu.Connection("memory://"),
            app=SimpleNamespace(amqp=SimpleNamespace(queues=self)),
            cancel_task_queue=self.leave,
            add_task_queue=lambda queue: self.events.append(f"began {queue}"),
            channel_errors=(),
            connection_errors=(),
            event_dispatcher=None,
            set_prefetch_count=lambda count: None,
            task_consumer=None,
            hub=Mock(),
        )
        service = Mock(dispatcher=self.dispatcher)
        self.loop = DispatchLoop(cast("JobConsumer", self.consumer), service)
        self.consumed = {spec.queue for spec in CATALOG.values()}
        self.consumer.dispatch_loop = self.loop
        self.on_message = strategy.strategy(run, app, cast("JobConsumer", self.consumer))

    def receive(
        self, *, model: str = "a", queue: str = "", headers: dict[str, Any] | None = None, **hints: Any
    ) -> None:
        job = self.job(model)
        arguments, known, embed = messages.make_body(job)
        arguments = hints.pop("args", arguments)
        message = Message(
            body=json.dumps([arguments, {**known, **hints}, embed]),
            headers=messages.make_headers(job) | (headers or {}),
            content_type="application/json",
            content_encoding="utf-8",
            accept={"application/json"},
            delivery_info={"routing_key": queue or job.queue},
            delivery_tag=job.job_id,
        )
        self.enterContext(patch.object(Message, "ack_log_error", lambda *_: self.events.append("acknowledged")))
        self.enterContext(patch.object(Message, "reject_log_error", lambda *_, **__: self.events.append("given back")))
        self.on_message(message, None, ack=None, reject=None, callbacks=())

    def job(self, model: str = "a") -> JobMessage:
        return JobMessage(
            job_id=str(uuid4()),
            model=model,
            queue=f"inference.{model}",
            group="",
            size=1,
            length=1,
            priority=2,
            created_at=1760000000.0,
            expires_at=None,
        )

    def load(self, **models: str) -> None:
        states = {CATALOG[name].digest: state for name, state in models.items()}
        self.replicas.note_loaded_models(LoadReport(pid=PID, models=states))

    def test_a_job_is_held(self) -> None:
        self.receive()
        self.assertEqual(len(self.dispatcher.backlog.held), 1)

    def receive_pack(self) -> list[str]:
        """Of three jobs; their ids as they are held."""
        self.receive(size=2, length=9, others=[[str(uuid4()), 1, 7], [str(uuid4()), 3, 8]])
        return list(self.dispatcher.backlog.held)

    def end(self, job_id: str, error: str = "") -> None:
        backlog = self.dispatcher.backlog
        backlog.queues["a"].remove(job_id)
        backlog.acknowledge_job(backlog.held[job_id], error, 0.1)

    def test_what_runs_as_its_connection_is_lost_runs_no_more_for_celery(self) -> None:
        state.reset_state()
        self.receive()
        backlog = self.dispatcher.backlog
        (held,) = backlog.held.values()
        backlog.queues["a"].remove(held.item.id)
        backlog.note_batch_start(Batch(id=uuid4(), spec=CATALOG["a"], jobs=[held], pid=PID))
        with patch.object(strategy.JobRequest, "send_event"):
            held.requests[0].report_started(PID)
        with patch.object(state, "should_stop", 0):
            held.requests[0].remove_from_running_tasks()
        self.assertEqual(len(state.active_requests), 1, "a second signal ends it")
        self.dispatcher.forget_messages()
        self.assertEqual((list(state.active_requests), state.requests), ([], {}))

    def test_what_was_to_be_done_soon_is_scheduled_again_by_the_next_connection(self) -> None:
        """The event loop drops all that it had to do soon, where the first of it has found the connection broken."""
        hub = self.consumer.hub
        for _ in range(2):
            with patch.object(self.loop, "update_subscriptions"):
                self.loop.begin_connection(hub)
            hub.call_soon.reset_mock()
            self.loop.dispatch_soon()
            hub.call_soon.assert_called_once()

    def test_jobs_that_share_a_message_are_jobs_like_any_other(self) -> None:
        held = [self.dispatcher.backlog.held[job_id] for job_id in self.receive_pack()]
        self.assertEqual([(each.item.size, each.item.length) for each in held], [(2, 9), (1, 7), (3, 8)])
        self.assertEqual(len({(each.item.group, each.item.priority, each.item.arrived_at_s) for each in held}), 1)
        self.assertEqual(len(self.dispatcher.backlog.queues["a"]), 3)

    def test_their_message_is_acknowledged_when_the_last_of_them_has_ended(self) -> None:
        first, second, third = self.receive_pack()
        self.end(third)
        self.end(first, "crashed")
        self.assertEqual(self.events, [])
        self.end(second)
        self.assertEqual(self.events, ["acknowledged"])

    def test_their_message_goes_back_whole_with_the_first_of_them_that_does_and_is_not_acknowledged_later(self) -> None:
        running = self.receive_pack()[0]
        self.end(self.receive_pack()[-1])
        self.events.clear()
        backlog = self.dispatcher.backlog
        held = backlog.held[running]
        backlog.queues["a"].remove(running)
        batch = Batch(id=uuid4(), spec=CATALOG["a"], jobs=[held], pid=PID)
        backlog.note_batch_start(batch)
        backlog.give_back_waiting_jobs()
        self.assertEqual(self.events, ["given back", "given back"])
        backlog.acknowledge_job(held, "", 0.1)
        self.assertEqual((self.events, backlog.held), (["given back", "given back"], {}))

    def test_what_is_revoked_of_them_takes_no_other_with_it(self) -> None:
        first = str(uuid4())
        with patch.object(state, "revoked", {first}):
            self.receive(args=[first], headers={"id": first}, others=[[str(uuid4()), 1, 7]])
        self.assertEqual(len(self.dispatcher.backlog.held), 2)

    def test_a_double_of_one_of_them_is_acknowledged_with_it(self) -> None:
        first, *_ = self.receive_pack()
        self.receive(args=[first])
        self.assertEqual(len(self.dispatcher.backlog.held), 3)
        self.end(first)
        self.assertEqual(self.events, ["acknowledged"])

    def test_a_worker_that_knows_of_no_others_reads_the_first(self) -> None:
        """One from before reads the message by these names."""
        jobs = [("01", 2, 9), ("02", 1, 7)]
        (message,) = messages.pack_jobs(self.job(), jobs, most=8, rows=8)
        arguments, hints, _ = messages.make_body(message)
        self.assertEqual((arguments, hints["size"], hints["length"], hints["model"]), (["01"], 2, 9, "a"))

    def test_a_message_of_one_job_is_what_it_was_before(self) -> None:
        """A worker from before, and its broker, see nothing new."""
        (message,) = messages.pack_jobs(self.job(), [("01", 2, 9)], most=8, rows=8)
        self.assertNotIn("others", messages.make_body(message)[1])
        self.assertNotIn("jobs", messages.make_headers(message))

    def test_hints_that_no_job_has_drop_the_message_and_nothing_else(self) -> None:
        tried: tuple[dict[str, Any], ...] = (
            {"size": math.inf}, {"length": 10**300}, {"priority": math.inf}, {"priority": 10**300}, {"size": "many"},
            {"created_at": 10**400}, {"created_at": math.nan}, {"expires_at": math.nan}, {"model": ["a"]},
            {"headers": {"id": [1]}}, {"headers": {"id": {}}}, {"others": 7}, {"others": [7]},
            {"others": [["x", 1, 1]]}, {"others": [[str(uuid4()), 1]]}, {"others": [[str(uuid4()), math.inf, 1]]},
            {"others": [[str(uuid4()), 1, 1]] * MOST_PACKED},
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
        self.dispatcher.note_connection()
        self.follow()
        self.assertEqual(sorted(self.events), ["began inference.a", "began inference.b"])

    def test_a_connection_that_breaks_before_each_sweep_is_no_event_loop_that_hangs(self) -> None:
        self.dispatcher.looped_at = 0.0
        self.loop.begin_connection(self.consumer.hub)
        self.assertGreater(self.dispatcher.looped_at, 0.0)

    def follow(self) -> None:
        """As the event loop does after each message and twice a second."""
        self.loop.update_subscriptions()

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
            self.assertLogs("celery.worker.consumer.consumer", "ERROR") as said,
            self.assertRaises(Enough),
        ):
            worker.ensure_connected(kombu.Connection("redis://127.0.0.1:1"))
        self.assertGreater(len(said.output), 180 / LONGEST_AWAY_S - 1)
