"""When a queue that the broker refuses is asked for again; a real RabbitMQ refuses in tests/e2e."""

import socket
import time
from contextlib import nullcontext
from types import SimpleNamespace
from unittest import TestCase
from unittest.mock import Mock, patch

import kombu
from amqp.transport import TCPTransport
from redis import ResponseError

from inference.broker import other_broker_publisher
from inference.catalog.specs import ModelSpec
from inference.worker.celery_worker import subscriptions
from inference.worker.celery_worker.subscriptions import LONGEST_PAUSE_S, Subscriptions

SPECS = {name: ModelSpec(name=name, engine="x:Y") for name in ("a", "b")}
A, B = (spec.queue for spec in SPECS.values())


class SubscriptionsTests(TestCase):
    """As a full Redis refuses the bindings of a queue."""

    def setUp(self) -> None:
        self.refused = {A}
        self.attempts: list[str] = []
        self.consumed: set[str] = set()
        self.now_s = 0.0
        clock = patch.object(time, "monotonic", lambda: self.now_s)
        self.addCleanup(clock.stop)
        clock.start()
        self.consumer = SimpleNamespace(
            hostname="w",
            conninfo=kombu.Connection("memory://"),
            channel_errors=(ResponseError,),
            connection_errors=(OSError,),
            add_task_queue=self.add,
            app=SimpleNamespace(amqp=SimpleNamespace(queues=self)),
        )
        self.subscriptions = Subscriptions(self.consumer)

    @property
    def consume_from(self) -> set[str]:
        return self.consumed

    def __contains__(self, queue: str) -> bool:
        return queue in (A, B)

    def deselect(self, queues: list[str]) -> None:
        self.consumed.difference_update(queues)

    def add(self, queue: str) -> None:
        self.attempts.append(queue)
        self.consumed.add(queue)
        if queue in self.refused:
            raise ResponseError("OOM command not allowed")

    def turn_for(self, seconds: float) -> None:
        """The event loop asks twice a second for what it does not consume."""
        for _ in range(int(seconds * 2)):
            for queue in {A, B} - self.consumed:
                self.subscriptions.consume_queue(queue)
            self.now_s += 0.5

    def test_a_refused_queue_is_named_and_keeps_nobody_from_the_others(self) -> None:
        self.turn_for(0.5)
        self.assertEqual(self.consumed, {B})
        self.assertEqual(list(self.subscriptions.explain_unconsumed(SPECS)), ["a"])
        self.assertIn("OOM", self.subscriptions.explain_unconsumed(SPECS)["a"])

    def test_a_refused_queue_is_tried_with_growing_pauses_and_consumed_once_it_may_be(self) -> None:
        self.turn_for(3600)
        attempts = self.attempts.count(A)
        self.assertLess(attempts, 3600 / LONGEST_PAUSE_S * 1.5)
        self.refused.clear()
        self.turn_for(LONGEST_PAUSE_S * 1.5)
        self.assertEqual((self.consumed, self.subscriptions.explain_unconsumed(SPECS)), ({A, B}, {}))
        self.assertEqual(self.attempts.count(A), attempts + 1)

    def test_a_queue_that_gives_no_answer_does_not_hold_the_event_loop(self) -> None:
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(theirs.close)
        transport = TCPTransport("localhost")
        transport.sock = ours
        self.consumer.conninfo = kombu.Connection("amqp://")
        self.consumer.connection = SimpleNamespace(connection=SimpleNamespace(transport=transport))
        self.consumer.add_task_queue = lambda queue: ours.recv(1)
        silent = Subscriptions(self.consumer)
        with patch.object(subscriptions, "ANSWER_S", 0.01), patch.object(silent, "_declare_queue"):
            self.assertRaises(TimeoutError, silent.consume_queue, A)
        self.assertIsNone(ours.gettimeout())

    def test_a_queue_that_breaks_the_connection_twice_is_made_anew_and_keeps_nobody_from_the_others(self) -> None:
        self.consumer.conninfo = kombu.Connection("amqp://")
        self.refused.clear()
        silent = self.subscriptions = Subscriptions(self.consumer)
        made_anew: list[str] = []
        reconnects = 0

        def declare(queue: str, *, anew: bool) -> None:
            if anew:
                made_anew.append(queue)
            elif queue == A and not made_anew:
                raise TimeoutError

        with patch.object(silent, "_declare_queue", declare), patch.object(silent, "_limit_wait", nullcontext):
            for _ in range(60):
                try:
                    self.turn_for(0.5)
                except TimeoutError:
                    reconnects += 1
                    self.consumed.clear()
        self.assertEqual((made_anew, reconnects, silent.explain_unconsumed(SPECS)), ([A], 2, {}))
        self.assertEqual(self.consumed, {A, B})

    def test_what_is_found_deleted_as_the_connection_ends_does_not_break_the_next(self) -> None:
        class Missing(frozenset[str]):
            def __contains__(other, mark: object) -> bool:
                self.subscriptions.forget_queues()
                return True

        broker = Mock(find_missing_exchanges=Missing)
        self.subscriptions._marks = {A: "mark"}  # noqa: SLF001 - it has consumed A
        with patch.object(other_broker_publisher, "get_publisher", lambda: broker):
            self.subscriptions.look_for_deleted_queues()
        self.subscriptions.raise_if_queue_deleted()

    def test_a_connection_to_redis_that_is_lost_is_held_against_no_queue(self) -> None:
        with patch.object(self.consumer, "add_task_queue", side_effect=ConnectionError):
            self.assertRaises(ConnectionError, self.subscriptions.consume_queue, B)
        self.assertEqual(self.subscriptions.explain_unconsumed(SPECS), {})
        self.subscriptions.consume_queue(B)
        self.assertEqual(self.consumed, {B})
