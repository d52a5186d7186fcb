"""What only our transport does."""

import json
import logging
from base64 import b64encode
from contextlib import AbstractContextManager
from typing import Any
from unittest import TestCase, mock

import redis
from kombu import Consumer, Exchange, Producer, Queue

from inference.broker import address, messages
from inference.broker.kombu_redis import channel, qos
from tests.conditions import eventually
from tests.inference.broker.consumers import Driven, connect
from tests.inference.broker.servers import client_of, own_broker, wait_for_its_log

A, B = "inference.a", "inference.b"


def envelope(**changes: Any) -> dict[str, Any]:
    properties = {
        "delivery_tag": "tag-1", "delivery_info": {"exchange": "", "routing_key": A}, "priority": 0,
        "body_encoding": "base64",
    }  # fmt: skip
    return {
        "body": b64encode(b'"x"').decode(), "content-type": "application/json", "content-encoding": "utf-8",
        "headers": {}, "properties": properties | changes.pop("properties", {}),
    } | changes  # fmt: skip


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in envelope().items() if key != name}


NO_MESSAGES: dict[str, str | bytes] = {
    "no JSON": "{",
    "nothing": "",
    "a number": "1",
    "a list": "[]",
    "no UTF-8": json.dumps(envelope(body="MARK")).encode().replace(b"MARK", b"\xff\xfe"),
    "nested too deep": "[" * 100_000 + "]" * 100_000,
    "no properties": json.dumps(without("properties")),
    "properties that are a list": json.dumps({**envelope(), "properties": []}),
    "no delivery_info": json.dumps(envelope(properties={"delivery_info": None})),
    "no exchange": json.dumps(envelope(properties={"delivery_info": {"routing_key": A}})),
    "no delivery tag": json.dumps(envelope(properties={"delivery_tag": None})),
    "an empty delivery tag": json.dumps(envelope(properties={"delivery_tag": ""})),
    "a tag that is a list": json.dumps(envelope(properties={"delivery_tag": [1]})),
    "no headers": json.dumps(without("headers")),
    "headers that are a list": json.dumps(envelope(headers=["task"])),
    "a task that is an object": json.dumps(envelope(headers={"task": {}, "id": "1"})),
    "a task without an id": json.dumps(envelope(headers={"task": "inference.run"})),
    "a number of jobs that is none": json.dumps(envelope(headers={"jobs": "many"})),
    "no body": json.dumps(without("body")),
    "a body that is a number": json.dumps(envelope(body=7)),
    "a body that is not base64": json.dumps(envelope(body="A")),
    "an unknown body encoding": json.dumps(envelope(properties={"body_encoding": "rot13"})),
    "more than a megabyte": json.dumps(envelope(body="A" * channel.LONGEST_BYTES)),
    "a type that kombu refuses": json.dumps(envelope(headers={"h": {"__type__": "date", "__value__": "x"}})),
}


class OnOwnBroker(TestCase):
    def setUp(self) -> None:
        self.broker = own_broker(self)
        self.client = client_of(self, self.broker.url)
        self.url = address.kombu_url(self.broker.url)

    def driven(self, *queues: str, **options: Any) -> Driven:
        return Driven(self, self.url, queues or [A], **options)

    def idle(self) -> Driven:
        """A consumer that knows that its queue is empty."""
        consumer = self.driven()
        consumer.turn()
        consumer.run_until(lambda: not consumer.channel._in_poll)  # noqa: SLF001
        return consumer

    def send(self, *bodies: Any, queue: str = A, step: int = 2, rows: int = 1, jobs: Any = 1, **options: Any) -> None:
        with connect(self, address.stock_kombu_url(self.broker.url), **options) as connection:
            producer = Producer(connection, serializer="json")
            for body in bodies:
                producer.publish(body, routing_key=queue, priority=step, headers={"rows": rows, "jobs": jobs})

    def calls(self, command: str) -> int:
        return int(self.client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])

    def leftovers(self) -> list[bytes]:
        return [key for key in self.client.scan_iter() if not key.startswith(b"_kombu")]


class TransportTests(OnOwnBroker):
    def test_a_message_wakes_an_idle_consumer_without_a_poll(self) -> None:
        with mock.patch.object(channel, "RECHECK_S", 3600):
            consumer = self.driven(A, B)
            for step, queue in enumerate((A, B, B, A)):
                consumer.turn()
                self.assertFalse(consumer.channel.is_due())
                self.send(step, queue=queue, step=step)
                self.assertEqual(consumer.get(1), [step])
                consumer.acknowledge()

    def test_an_idle_consumer_fetches_nothing(self) -> None:
        with mock.patch.object(channel, "RECHECK_S", 3600):
            consumer = self.idle()
            before = self.calls("evalsha")
            consumer.turn(20)
            self.assertEqual(self.calls("evalsha"), before)

    def test_a_channel_that_only_listens_to_a_fanout_fetches_nothing(self) -> None:
        consumer = self.driven()
        everyone = consumer.connection.channel()
        listener = Consumer(everyone, [Queue("own", Exchange("control", "fanout"))], on_message=print)
        listener.consume()
        consumer.turn()
        self.assertFalse(everyone.is_due())

    def test_a_missed_word_is_made_up_for(self) -> None:
        consumer = self.driven()
        consumer.turn()
        with mock.patch.object(consumer.channel, "_on_invalidation"):
            self.send("x")
            self.assertEqual(consumer.get(1), ["x"])

    def test_more_is_held_of_the_lowest_priority_and_all_others_have_the_prefetch_count_for_themselves(self) -> None:
        with mock.patch.object(channel, "RECHECK_S", 3600):
            consumer = self.driven(prefetch=4)
            consumer.channel.allow_patient(6, [A])
            self.send(*range(20), step=3)
            consumer.get(10)
            consumer.turn()
            self.assertEqual(consumer.bodies, list(range(10)))
            self.send("a", "b", step=2)
            consumer.get(12)
            self.send("c", "d", "e", step=1)
            consumer.get(14)
            consumer.turn()
            self.assertEqual(consumer.bodies[10:], ["a", "b", "c", "d"])
            before = self.calls("evalsha")
            consumer.turn(20)
            self.assertEqual(self.calls("evalsha"), before, "asked while there is no room")
            consumer.acknowledge(9)
            self.assertEqual(consumer.get(10), [9, "a", "b", "c", "d", *range(10, 15)])
            consumer.acknowledge(2)
            self.assertIn("e", consumer.get(10))

    def test_that_is_held_of_no_other_queue_and_keeps_nobody_out_once_it_is_not_allowed_any_more(self) -> None:
        with mock.patch.object(channel, "RECHECK_S", 3600):
            consumer = self.driven(A, B, prefetch=4)
            self.send(*range(10), queue=B, step=3)
            consumer.get(4)
            consumer.channel.allow_patient(6, [A])
            self.send(*range(20, 30), step=3)
            self.assertEqual(consumer.get(10)[4:], list(range(20, 26)))
            consumer.channel.allow_patient(0, [])
            self.send("a", "b", "c", "d", "e", queue=B, step=1)
            self.assertEqual(consumer.get(14)[10:], ["a", "b", "c", "d"])
            consumer.acknowledge(13)
            self.assertEqual(consumer.get(2)[:2], ["d", "e"])

    def test_where_more_is_held_of_some_queues_only_a_fetch_that_finds_nothing_is_no_error(self) -> None:
        consumer = self.driven(A, B, "inference.c", prefetch=4)
        self.send(*range(4), step=3)
        consumer.get(4)
        consumer.channel.allow_patient(6, [A, B])
        with mock.patch.object(channel, "RECHECK_S", 0.0):
            consumer.turn(5)
        self.send(*range(4, 8), queue=B, step=3)
        self.assertEqual(consumer.get(8), list(range(8)))

    def test_room_for_the_lowest_priority_is_used_at_once_though_no_word_came(self) -> None:
        with mock.patch.object(channel, "RECHECK_S", 3600):
            consumer = self.driven(prefetch=1)
            consumer.channel.allow_patient(1, [A])
            self.send(*range(5), step=3)
            consumer.get(2)
            consumer.turn()
            consumer.channel.allow_patient(3, [A])
            self.assertEqual(consumer.get(4), [0, 1, 2, 3])

    def test_many_messages_cost_a_few_commands_and_nothing_is_ever_popped_outside_the_script(self) -> None:
        self.send(*range(500))
        fetches = self.calls("evalsha")
        consumer = self.driven(prefetch=100)
        self.enterContext(mock.patch.object(channel, "RECHECK_S", 3600))
        for start in range(0, 500, 100):
            self.assertEqual(consumer.get(100), list(range(start, start + 100)))
            consumer.acknowledge()
        consumer.run_until(lambda: not self.leftovers())
        self.assertLess(self.calls("evalsha") - fetches, 12)
        self.assertEqual(self.calls("brpop"), 0)

    def test_who_is_first_leaves_messages_of_many_rows_to_the_others(self) -> None:
        self.send(*range(6), rows=4)
        first, second = self.driven(prefetch=8), self.driven(prefetch=8)
        self.assertEqual((first.get(1), second.get(1)), ([0, 1], [2, 3]))

    def test_a_message_of_more_rows_than_there_is_credit_is_taken(self) -> None:
        self.send("x", "y", rows=1000)
        self.assertEqual(self.driven(prefetch=2).get(2), ["x", "y"])

    def test_the_prefetch_is_one_of_jobs_and_each_that_ends_makes_room(self) -> None:
        self.send(*range(4), rows=3, jobs=3)
        consumer = self.driven(prefetch=5)
        self.assertEqual(consumer.get(2), [0, 1])
        tag = consumer.messages[0].delivery_tag
        consumer.channel.make_room(tag)
        consumer.turn()
        self.assertEqual(consumer.bodies, [0, 1])
        consumer.channel.make_room(tag)
        self.assertEqual(consumer.get(3), [0, 1, 2])
        consumer.acknowledge()
        self.assertEqual(consumer.get(1), [3])

    def test_a_message_that_claims_to_be_of_many_jobs_takes_the_room_of_a_bounded_number(self) -> None:
        self.send("x", jobs=10**9)
        self.send("y", jobs=-7)
        self.send("z")
        consumer = self.driven(prefetch=messages.MOST_PACKED + 2)
        self.assertEqual(consumer.get(3), ["x", "y", "z"])
        consumer.channel.make_room(consumer.messages[1].delivery_tag)  # it brought more than it says
        self.assertEqual(consumer.channel.qos.can_consume_low(), 0)

    def test_what_was_not_acknowledged_is_put_back_in_its_order(self) -> None:
        self.send(*range(6))
        self.send(*range(6, 9), step=1)
        consumer = self.driven(prefetch=7)
        self.assertEqual(consumer.get(7), [6, 7, 8, 0, 1, 2, 3])
        consumer.acknowledge(1)
        consumer.connection.close()
        again = self.driven()
        self.assertEqual(again.get(8), [7, 8, 0, 1, 2, 3, 4, 5])
        self.assertTrue(again.messages[0].headers["redelivered"])
        self.assertNotIn("redelivered", again.messages[-1].headers)

    def test_what_was_fetched_and_not_read_yet_is_put_back(self) -> None:
        self.fetching().connection.close()
        self.assertEqual(self.driven().get(3), [0, 1, 2])

    def test_what_was_fetched_and_not_read_yet_is_put_back_as_soon_as_the_last_queue_is_left(self) -> None:
        """A worker that leaves may have batches to end before it closes, while others could run what it fetched."""
        consumer = self.fetching()
        consumer.consumer.cancel()
        self.assertEqual(self.driven().get(3), [0, 1, 2])

    def fetching(self) -> Driven:
        """A consumer whose fetch of 0, 1, 2 was executed, and whose answer it has not read."""
        consumer = self.idle()
        self.send(*range(3))
        consumer.channel._update_queue_cycle()  # noqa: SLF001 - as when its queues change
        consumer.channel.connection.cycle.on_poll_start()
        eventually(lambda: self.client.hlen("unacked") == 3, "the server has executed the fetch")
        return consumer

    def test_a_fetch_with_a_lost_answer_is_found_again_by_the_next_connection(self) -> None:
        consumer = self.fetching()
        consumer.channel.client.connection.disconnect()
        self.assertEqual(sorted(consumer.get(3)), [0, 1, 2])

    def test_a_fetch_with_a_lost_answer_is_put_back_when_the_consumer_leaves(self) -> None:
        consumer = self.fetching()
        with mock.patch.object(consumer.channel, "_read_answer", side_effect=OSError("cut")):
            consumer.connection.close()
        self.assertEqual(sorted(self.driven().get(3)), [0, 1, 2])

    def test_acknowledgements_are_sent_when_the_consumer_leaves_with_nothing_else_to_put_back(self) -> None:
        self.send("x")
        consumer = self.driven()
        consumer.get(1)
        consumer.acknowledge()
        consumer.connection.close()
        self.assertEqual(self.leftovers(), [])

    def test_requeued_messages_go_first(self) -> None:
        self.send(*range(4))
        consumer = self.driven(prefetch=2)
        consumer.get(2)
        for message in reversed(consumer.messages):
            message.requeue()
        consumer.messages.clear()
        self.assertEqual(consumer.get(2), [0, 1])

    def refusing(self) -> AbstractContextManager[Any]:
        """The server does not answer in time when messages are put back."""
        return mock.patch.object(qos.QoS, "put_back", side_effect=redis.TimeoutError("stalled"))

    def test_what_could_not_be_put_back_at_once_takes_no_room_and_is_put_back_later(self) -> None:
        self.send("x", "y", rows=2, jobs=2)
        consumer = self.driven(prefetch=4)
        consumer.get(2)
        errors = consumer.connection.connection_errors
        with self.refusing():
            for message in consumer.messages:
                message.reject_log_error(logging.getLogger(__name__), errors, requeue=True)
        consumer.messages.clear()
        self.assertEqual(consumer.channel.qos.can_consume_max_estimate(), 4)
        consumer.channel.connection.cycle.maybe_restore_messages()
        self.assertEqual(sorted(consumer.get(2)), ["x", "y"])
        with self.refusing():
            for message in consumer.messages:
                message.reject_log_error(logging.getLogger(__name__), errors, requeue=True)
        consumer.connection.close()
        self.assertEqual(self.client.llen(address.redis_key(A, 2)), 2)

    def test_so_it_is_with_what_arrives_as_its_queue_is_left(self) -> None:
        self.send("x")
        consumer = self.driven(A, B)
        hand_over = consumer.channel._hand_over  # noqa: SLF001 - a queue is left between a fetch and this

        def leave_first(queue: str, arrived: Any) -> None:
            consumer.channel._active_queues.remove(queue)  # noqa: SLF001
            hand_over(queue, arrived)

        with mock.patch.object(consumer.channel, "_hand_over", leave_first), self.refusing():
            consumer.run_until(lambda: qos.unsettled[consumer.channel.server])
        consumer.channel.connection.cycle.maybe_restore_messages()
        self.assertEqual(self.client.llen(address.redis_key(A, 2)), 1)

    def test_a_message_that_comes_again_takes_the_room_of_one(self) -> None:
        consumer = self.driven(prefetch=4)
        consumer.channel.allow_patient(6, [A])
        self.send("x", step=3)
        consumer.get(1)
        with connect(self, self.url, visibility_timeout=-10) as other:
            other.default_channel.qos.restore_visible()
        consumer.run_until(lambda: len(consumer.messages) == 2)
        consumer.acknowledge()
        room = consumer.channel.qos
        self.assertEqual((room.can_consume_low(), room.can_consume_max_estimate()), (4, 4))

    def test_queues_share_the_prefetch_whatever_their_backlogs(self) -> None:
        self.send(*range(50), queue=A)
        self.send(*"xyz", queue=B)
        consumer = self.driven(A, B, prefetch=10)
        consumer.get(10)
        self.assertEqual([body for body in consumer.bodies if body in list("xyz")], list("xyz"))

    def test_a_consumer_that_does_not_acknowledge_leaves_nothing_behind(self) -> None:
        self.send("x", "y")
        consumer = self.driven(B)
        consumer.consumer.add_queue(Queue(A))
        consumer.consumer.consume(no_ack=True)
        self.assertEqual(consumer.get(2), ["x", "y"])
        consumer.run_until(lambda: not self.leftovers())

    def test_a_full_server_is_emptied(self) -> None:
        consumer = self.driven(prefetch=1)
        self.send(*range(5))
        self.client.config_set("maxmemory", 1)
        for number in range(5):
            self.assertEqual(consumer.get(1), [number])
            consumer.channel.qos.restore_visible()
            consumer.acknowledge()
        consumer.run_until(lambda: not self.leftovers())

    def test_a_key_of_another_type_does_not_hold_up_the_other_queues(self) -> None:
        consumer = self.driven(A, B)
        self.client.set(A, "no list")
        for body in "xyz":
            self.send(body, queue=B)
            self.assertEqual(consumer.get(1), [body])
            consumer.acknowledge()

    def test_a_server_that_refuses_to_write_is_a_channel_error(self) -> None:
        self.send("x")
        consumer = self.driven()
        consumer.turn()
        self.client.replicaof("127.0.0.1", 1)
        with self.assertRaises(consumer.connection.channel_errors):
            consumer.run_until(lambda: False)

    def test_a_key_prefix_is_kept(self) -> None:
        self.send("x", global_keyprefix="p:")
        consumer = self.driven(global_keyprefix="p:")
        self.assertEqual(consumer.get(1), ["x"])
        self.assertEqual(self.client.hlen("p:unacked"), 1)
        consumer.connection.close()
        self.assertEqual(self.client.llen(f"p:{address.redis_key(A, 2)}"), 1)

    def test_acknowledgements_that_a_dead_broker_could_not_get_are_sent_over_the_next_connection(self) -> None:
        self.send(*range(4))
        consumer = self.driven()
        consumer.get(4)
        wait_for_its_log(self.client)
        self.broker.kill()
        consumer.acknowledge(1)
        consumer.connection.close()
        self.broker.start()
        self.assertEqual(self.client.hlen("unacked"), 4)
        self.assertEqual(self.driven().get(3), [1, 2, 3])
        self.assertEqual(self.client.hlen("unacked"), 3)
        self.assertEqual(qos.unsettled[consumer.channel.server], [])

    def test_messages_that_another_has_restored_meanwhile_are_not_doubled(self) -> None:
        self.send("x")
        consumer = self.driven()
        consumer.get(1)
        consumer.consumer.cancel()
        with connect(self, self.url, visibility_timeout=-10) as other:
            other.default_channel.qos.restore_visible()
        consumer.connection.close()
        self.assertEqual(self.client.llen(address.redis_key(A, 2)), 1)

    def test_the_stock_transport_consumes_what_ours_publishes_and_puts_back(self) -> None:
        self.send(*range(3))
        first = self.driven(prefetch=2)
        first.get(2)
        first.connection.close()
        stock = Driven(self, address.stock_kombu_url(self.broker.url), [A])
        self.assertEqual(stock.get(3), [0, 1, 2])


class NoMessageTests(OnOwnBroker):
    """What anybody may write into the queue: it is dropped with one line, and the next message is served."""

    def test_what_is_no_message_is_dropped_with_one_line(self) -> None:
        consumer = self.driven()
        for what, text in NO_MESSAGES.items():
            with self.subTest(what), self.assertLogs("inference.broker", "ERROR") as logs:
                self.client.lpush(A, text)
                self.send("good")
                self.assertEqual(consumer.get(1), ["good"])
                consumer.acknowledge()
                consumer.run_until(lambda: not self.leftovers())
            with self.subTest(what):
                self.assertEqual(len(logs.records), 1)
                self.assertLess(len(logs.output[0]), 600)

    def test_a_message_that_its_consumer_cannot_stand_is_dropped(self) -> None:
        consumer = self.driven()
        self.send({"key": "poison"})
        failing = mock.patch.object(consumer.consumer, "on_message", side_effect=KeyError("id"))
        with failing, self.assertLogs("inference.broker", "ERROR"):
            consumer.run_until(lambda: self.calls("hset") and not self.leftovers())
        self.send("good")
        self.assertEqual(consumer.get(1), ["good"])

    def test_a_broadcast_that_is_no_message_is_dropped(self) -> None:
        heard = self.driven()
        channel_ = heard.connection.channel()
        exchange = Exchange("shouts", type="fanout")
        listener = Consumer(channel_, [Queue("ears", exchange)], on_message=heard.receive, accept=["json"])
        listener.consume()
        heard.turn()
        with self.assertLogs("inference.broker", "ERROR"):
            for text in ("[]", "{}", '"x"'):
                self.client.publish("/0.shouts", text)
            Producer(channel_, exchange=exchange, serializer="json").publish("hello")
            heard.run_until(lambda: heard.messages)
        self.assertEqual(heard.bodies, ["hello"])


logging.getLogger("kombu").setLevel(logging.WARNING)
