"""What a consumer may rely on, with kombu's own Redis transport and with ours, on a Unix socket and on TCP."""

from collections.abc import Sequence
from typing import Any
from unittest import TestCase

import kombu

from inference.broker import address
from tests.conditions import PATIENCE_S
from tests.embedded_broker import EmbeddedBroker
from tests.inference.broker.consumers import Driven, connect
from tests.inference.broker.servers import TcpBroker, client_of, own_broker

QUEUES = ["inference.a", "inference.b"]
A, B = QUEUES


class Contract(TestCase):
    """On a broker of its own, so that it may be killed and set up."""

    server: type[EmbeddedBroker] = EmbeddedBroker

    def kombu_url(self, redis_url: str) -> str:
        raise NotImplementedError

    def setUp(self) -> None:
        self.broker = own_broker(self, self.server)
        self.client = client_of(self, self.broker.url)
        self.url = self.kombu_url(self.broker.url)

    def driven(self, queues: Sequence[str] = QUEUES, **options: Any) -> Driven:
        return Driven(self, self.url, queues, **options)

    def send(self, *bodies: Any, queue: str = A, step: int = 2, url: str = "") -> None:
        with connect(self, url or self.url) as connection:
            producer = connection.Producer(serializer="json")
            for body in bodies:
                producer.publish(body, routing_key=queue, priority=step)

    def waiting(self, queue: str = A) -> int:
        return sum(self.client.llen(address.make_queue_key(queue, step)) for step in address.PRIORITY_STEPS)

    def unacked(self) -> tuple[int, int]:
        return self.client.hlen("unacked"), self.client.zcard("unacked_index")

    def test_what_is_sent_arrives_and_leaves_nothing_behind_once_acknowledged(self) -> None:
        self.send("x", {"n": 1})
        consumer = self.driven()
        self.assertEqual(consumer.get(2), ["x", {"n": 1}])
        self.assertEqual((self.waiting(), self.unacked()), (0, (2, 2)))
        consumer.acknowledge()
        consumer.run_until(lambda: self.unacked() == (0, 0))

    def test_without_an_event_loop_an_acknowledgement_is_sent_at_once(self) -> None:
        self.send("x")
        connection = connect(self, self.url)
        messages: list[kombu.Message] = []
        with kombu.Consumer(connection, [kombu.Queue(A)], on_message=messages.append, accept=["json"]):
            connection.drain_events(timeout=PATIENCE_S)
            messages[0].ack()
            self.assertEqual(self.unacked(), (0, 0))
            with self.assertRaises(TimeoutError):
                connection.drain_events(timeout=0.05)  # its own limit ends the call

    def test_an_idle_consumer_gets_what_is_sent_later(self) -> None:
        consumer = self.driven()
        consumer.turn()
        for queue in (A, B, A):
            self.send(queue, queue=queue)
            self.assertEqual(consumer.get(1), [queue])
            consumer.acknowledge()

    def test_smaller_steps_go_first_over_all_queues_and_each_list_in_order(self) -> None:
        for step in (3, 2, 1, 0):
            self.send(*[[step, n] for n in range(3)], queue=A if step % 2 else B, step=step)
        bodies = self.driven().get(12)
        self.assertEqual(bodies, [[step, n] for step in (0, 1, 2, 3) for n in range(3)])

    def test_no_more_than_the_prefetch_is_taken(self) -> None:
        self.send(*range(10))
        consumer = self.driven(prefetch=4)
        consumer.get(4)
        consumer.turn()
        self.assertEqual((len(consumer.messages), self.waiting()), (4, 6))
        consumer.acknowledge(3)
        consumer.get(4)
        consumer.turn()
        self.assertEqual((consumer.bodies, self.waiting()), ([3, 4, 5, 6], 3))

    def test_a_rejected_message_is_gone(self) -> None:
        self.send("x")
        consumer = self.driven()
        consumer.get(1)
        consumer.messages[0].reject()
        consumer.run_until(lambda: self.unacked() == (0, 0))
        self.assertEqual(self.waiting(), 0)

    def test_a_requeued_message_comes_again_and_says_so(self) -> None:
        self.send("x")
        consumer = self.driven()
        consumer.get(1)
        consumer.messages.pop().requeue()
        self.assertEqual(consumer.get(1), ["x"])
        self.assertTrue(consumer.messages[0].delivery_info["redelivered"])
        self.assertEqual(self.unacked(), (1, 1))

    def test_what_is_not_acknowledged_waits_again_once_the_consumer_has_left(self) -> None:
        self.send(*range(5), step=1)
        self.send(*range(5, 8))
        consumer = self.driven(prefetch=6)
        consumer.get(6)
        consumer.acknowledge(2)
        consumer.connection.close()
        self.assertEqual((self.waiting(), self.unacked()), (6, (0, 0)))
        self.assertEqual(sorted(self.driven().get(6)), [2, 3, 4, 5, 6, 7])

    def test_two_consumers_share_a_queue_and_nothing_is_delivered_twice(self) -> None:
        self.send(*range(40))
        consumers = [self.driven(prefetch=10), self.driven(prefetch=10)]
        while sum(len(consumer.messages) for consumer in consumers) < 20:
            for consumer in consumers:
                consumer.turn(1)
        bodies = [body for consumer in consumers for body in consumer.bodies]
        self.assertEqual(sorted(bodies), list(range(20)))

    def test_a_cancelled_queue_is_left_alone_and_the_others_go_on(self) -> None:
        consumer = self.driven()
        consumer.turn()
        consumer.consumer.cancel_by_queue(B)
        self.send("b", queue=B)
        self.send("a", queue=A)
        self.assertEqual(consumer.get(1), ["a"])
        consumer.turn()
        consumer.connection.close()
        self.assertEqual((self.waiting(A), self.waiting(B)), (1, 1))

    def test_messages_of_a_killed_consumer_are_restored_by_either_transport(self) -> None:
        self.send(*range(3))
        killed = self.driven()
        killed.get(3)
        killed.channel.qos.restore_at_shutdown = False  # as SIGKILL: no farewell
        killed.connection.close()
        self.assertEqual((self.waiting(), self.unacked()), (0, (3, 3)))
        stock = connect(self, address.make_stock_kombu_url(self.broker.url), visibility_timeout=-10)
        stock.default_channel.qos.restore_visible(num=1)
        self.assertEqual(self.waiting(), 1)
        ours = connect(self, address.make_kombu_url(self.broker.url), visibility_timeout=-10)
        ours.default_channel.qos.restore_visible()
        self.assertEqual(self.waiting(), 3)
        self.assertEqual(sorted(self.driven().get(3)), [0, 1, 2])

    def test_a_queue_is_measured_read_without_a_consumer_and_emptied(self) -> None:
        self.send("x", "y", step=1)
        self.send("z", queue=B)
        channel = connect(self, self.url).default_channel
        with self.assertRaises(channel.connection.channel_errors):
            channel.queue_declare("inference.none", passive=True)
        self.assertEqual(channel.queue_declare(A, passive=True).message_count, 2)
        message = channel.basic_get(A)
        self.assertEqual((message.decode(), self.waiting(), self.unacked()), ("x", 1, (1, 1)))
        message.ack()
        self.assertEqual(self.unacked(), (0, 0))
        self.assertEqual(channel.queue_purge(A), 1)
        self.assertIsNone(channel.basic_get(A, no_ack=True))
        self.assertEqual(channel.basic_get(B, no_ack=True).decode(), "z")
        self.assertEqual((self.waiting(B), self.unacked()), (0, (0, 0)))

    def test_a_killed_and_restarted_broker_is_a_connection_error_and_a_new_connection_goes_on(self) -> None:
        self.send("kept")
        consumer = self.driven(prefetch=2)
        consumer.get(1)
        self.broker.kill()
        with self.assertRaises(consumer.connection.connection_errors):
            consumer.run_until(lambda: False)
        self.broker.start()
        consumer.connection.collect()
        again = self.driven()
        self.send("new", queue=B)
        again.run_until(lambda: "new" in again.bodies)

    def test_cut_connections_lose_nothing(self) -> None:
        self.send(*range(4))
        consumer = self.driven(prefetch=2)
        consumer.get(2)
        self.client.client_kill_filter(_type="normal", skipme=True)
        with self.assertRaises(consumer.connection.connection_errors):
            consumer.acknowledge(1)
            consumer.run_until(lambda: False)
        consumer.connection.close()
        self.assertEqual(self.waiting() + self.unacked()[0], self.waiting())
        self.assertGreaterEqual(self.waiting(), 3)


class StockOnSocketTests(Contract):
    def kombu_url(self, redis_url: str) -> str:
        return address.make_stock_kombu_url(redis_url)


class StockOnTcpTests(StockOnSocketTests):
    server = TcpBroker


class OursOnSocketTests(Contract):
    def kombu_url(self, redis_url: str) -> str:
        return address.make_kombu_url(redis_url)


class OursOnTcpTests(OursOnSocketTests):
    server = TcpBroker


del Contract  # else its tests would run on no transport
