"""What only our transport does."""

import itertools
import json
import logging
import socket
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import TestCase, mock
from urllib.parse import quote

import kombu
import redis
from django.conf import settings
from kombu import Consumer, Exchange, Producer, Queue

from inference.broker import address, messages
from inference.broker.kombu_redis import broadcasts, fetches, qos
from tests.conditions import PATIENCE_S, eventually
from tests.inference.broker.consumers import Driven, connect
from tests.inference.broker.servers import TcpBroker, client_of, own_broker, wait_for_its_log

A, B = "inference.a", "inference.b"


def envelope(**changes: Any) -> dict[str, Any]:
    properties = {
        "delivery_tag": "tag-1", "delivery_info": {"exchange": "", "routing_key": A}, "priority": 0,
        "body_encoding": "base64",
    }  # fmt: skip
    return {
        "body": b64encode(b'"x"').decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {},
        "properties": properties | changes.pop("properties", {}),
    } | changes


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
    "more than a megabyte": json.dumps(envelope(body="A" * fetches.LONGEST_BYTES)),
    "a type that kombu refuses": json.dumps(envelope(headers={"h": {"__type__": "date", "__value__": "x"}})),
}


LEAVING = """
import os, sys, kombu
from inference.broker import address

connection = kombu.Connection(sys.argv[1], transport_options=address.make_kombu_options(sys.argv[1]))
kombu.Consumer(connection, [kombu.Queue(sys.argv[2])], on_message=lambda message: None).consume()
connection.drain_events()
if os.fork():
    os.wait()
    print("the copy has left", flush=True)
    sys.stdin.read()
"""


class OnOwnBroker(TestCase):
    def setUp(self) -> None:
        self.broker = own_broker(self)
        self.client = client_of(self, self.broker.url)
        self.url = address.make_kombu_url(self.broker.url)

    def driven(self, *queues: str, **options: Any) -> Driven:
        return Driven(self, self.url, queues or [A], **options)

    def idle(self) -> Driven:
        """A consumer that knows that its queue is empty."""
        consumer = self.driven()
        consumer.turn()
        consumer.run_until(lambda: not consumer.channel.fetches.is_fetching)
        return consumer

    def send(self, *bodies: Any, queue: str = A, step: int = 2, rows: int = 1, jobs: Any = 1, **options: Any) -> None:
        with connect(self, address.make_stock_kombu_url(self.broker.url), **options) as connection:
            producer = Producer(connection, serializer="json")
            for body in bodies:
                producer.publish(body, routing_key=queue, priority=step, headers={"rows": rows, "jobs": jobs})

    def calls(self, command: str) -> int:
        return int(self.client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])

    def leftovers(self) -> list[bytes]:
        return [key for key in self.client.scan_iter() if not key.startswith(b"_kombu")]


class TransportTests(OnOwnBroker):
    def test_a_message_wakes_an_idle_consumer_without_a_poll(self) -> None:
        with mock.patch.object(fetches, "RECHECK_S", 3600):
            consumer = self.driven(A, B)
            for step, queue in enumerate((A, B, B, A)):
                consumer.turn()
                self.assertFalse(consumer.channel.fetches.is_due())
                self.send(step, queue=queue, step=step)
                self.assertEqual(consumer.get(1), [step])
                consumer.acknowledge()

    def test_an_idle_consumer_fetches_nothing(self) -> None:
        with mock.patch.object(fetches, "RECHECK_S", 3600):
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
        self.assertFalse(everyone.fetches.is_due())

    def test_a_missed_word_is_made_up_for(self) -> None:
        consumer = self.driven()
        consumer.turn()
        with mock.patch.object(consumer.channel.fetches, "_handle_invalidation"):
            self.send("x")
            self.assertEqual(consumer.get(1), ["x"])

    def test_those_whom_somebody_waits_for_have_the_prefetch_count_beside_the_patient(self) -> None:
        with mock.patch.object(fetches, "RECHECK_S", 3600):
            consumer = self.driven(prefetch=4)
            self.send(*range(10), step=3)
            consumer.get(4)
            consumer.turn()
            self.send("a", "b", step=2)
            consumer.get(6)
            self.send("c", "d", "e", step=1)
            consumer.get(8)
            consumer.turn()
            self.assertEqual(consumer.bodies, [0, 1, 2, 3, "a", "b", "c", "d"])
            before = self.calls("evalsha")
            consumer.turn(20)
            self.assertEqual(self.calls("evalsha"), before, "asked while there is no room")
            consumer.acknowledge(6)
            self.assertEqual(consumer.get(4), ["c", "d", "e", 4])

    def test_room_for_a_patient_priority_is_used_at_once_though_no_word_came(self) -> None:
        with mock.patch.object(fetches, "RECHECK_S", 3600):
            consumer = self.driven(prefetch=1)
            self.send(0, step=3)
            consumer.get(1)
            self.send(1, 2, step=3)
            consumer.turn(30)
            consumer.consumer.qos(prefetch_count=3)
            self.assertEqual(consumer.get(3), [0, 1, 2])

    def test_many_messages_cost_a_few_commands_and_nothing_is_ever_popped_outside_the_script(self) -> None:
        self.send(*range(500))
        before = self.calls("evalsha")
        consumer = self.driven(prefetch=100)
        self.enterContext(mock.patch.object(fetches, "RECHECK_S", 3600))
        for start in range(0, 500, 100):
            self.assertEqual(consumer.get(100), list(range(start, start + 100)))
            consumer.acknowledge()
        consumer.run_until(lambda: not self.leftovers())
        self.assertLess(self.calls("evalsha") - before, 12)
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
        consumer.channel.free_prefetch_place(tag)
        consumer.turn()
        self.assertEqual(consumer.bodies, [0, 1])
        consumer.channel.free_prefetch_place(tag)
        self.assertEqual(consumer.get(3), [0, 1, 2])
        consumer.acknowledge()
        self.assertEqual(consumer.get(1), [3])

    def test_a_message_that_claims_to_be_of_many_jobs_takes_the_room_of_a_bounded_number(self) -> None:
        self.send("x", jobs=10**9)
        self.send("y", jobs=-7)
        self.send("z")
        consumer = self.driven(prefetch=messages.MOST_PACKED + 2)
        self.assertEqual(consumer.get(3), ["x", "y", "z"])
        consumer.channel.free_prefetch_place(consumer.messages[1].delivery_tag)  # it brought more than it says
        self.assertEqual(consumer.channel.qos.compute_total_credit(), 0)

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
        consumer.consumer.add_queue(Queue(B))  # what is known of the lists is known no more
        consumer.consumer.consume()
        consumer.channel.send_due_commands()
        eventually(lambda: self.client.hlen("unacked") == 3, "the server has executed the fetch")
        return consumer

    def test_a_fetch_with_a_lost_answer_is_found_again_by_the_next_connection(self) -> None:
        consumer = self.fetching()
        consumer.channel.fetches._link.disconnect()  # noqa: SLF001
        self.assertEqual(sorted(consumer.get(3)), [0, 1, 2])

    def test_a_fetch_whose_answer_is_overdue_is_found_again_by_another_connection(self) -> None:
        consumer = self.fetching()
        consumer.channel.connection.check_health()
        self.assertTrue(consumer.channel.fetches.is_fetching)
        with mock.patch.object(consumer.channel, "health_check_interval", -1):
            consumer.channel.connection.check_health()
        self.assertFalse(consumer.channel.fetches.is_fetching)
        self.assertEqual(sorted(consumer.get(3)), [0, 1, 2])

    def test_a_fetch_with_a_lost_answer_is_put_back_when_the_consumer_leaves(self) -> None:
        consumer = self.fetching()
        with mock.patch.object(consumer.channel.fetches, "_read_answer", side_effect=OSError("cut")):
            consumer.connection.close()
        self.assertEqual(sorted(self.driven().get(3)), [0, 1, 2])

    def test_a_process_that_ends_without_a_close_puts_back_what_it_holds_and_a_copy_of_it_does_not(self) -> None:
        self.send("x")
        command = [sys.executable, "-c", LEAVING, self.url, A]
        with subprocess.Popen(command, cwd=settings.BASE_DIR, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin
            assert process.stdout
            self.assertEqual(process.stdout.readline(), b"the copy has left\n")
            self.assertEqual(self.client.hlen("unacked"), 1)
            process.stdin.close()
        self.assertEqual(self.driven().get(1), ["x"])

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
        consumer.channel.connection.restore_messages()
        self.assertEqual(sorted(consumer.get(2)), ["x", "y"])
        with self.refusing():
            for message in consumer.messages:
                message.reject_log_error(logging.getLogger(__name__), errors, requeue=True)
        consumer.connection.close()
        self.assertEqual(self.client.llen(address.make_queue_key(A, 2)), 2)

    def test_so_it_is_with_what_arrives_as_its_queue_is_left(self) -> None:
        self.send("x", "y")
        consumer = self.driven(A, B)

        def leave(message: kombu.Message) -> None:
            consumer.receive(message)
            consumer.consumer.cancel_by_queue(A)

        consumer.consumer.on_message = leave
        with self.refusing():
            consumer.run_until(lambda: qos.unsettled_by_server[consumer.channel.server])
        consumer.channel.connection.restore_messages()
        self.assertEqual(self.client.llen(address.make_queue_key(A, 2)), 1)

    def test_a_message_that_comes_again_takes_the_room_of_one(self) -> None:
        consumer = self.driven(prefetch=4)
        self.send("x", step=3)
        consumer.get(1)
        with connect(self, self.url, visibility_timeout=-10) as other:
            other.default_channel.qos.restore_visible()
        consumer.run_until(lambda: len(consumer.messages) == 2)
        consumer.acknowledge()
        room = consumer.channel.qos
        self.assertEqual((room.compute_total_credit(), room.can_consume_max_estimate()), (4, 4))

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

    def test_passwords_and_numbers_of_databases_are_those_of_the_address(self) -> None:
        broker = own_broker(self, TcpBroker)
        assert isinstance(broker, TcpBroker)
        client_of(self, broker.url).config_set("requirepass", "a:b/c")
        password = quote("a:b/c", safe="")
        for url in (f"redis://:{password}@127.0.0.1:{broker.port}/3", f"unix://:{password}@{broker.path}?db=3"):
            client = client_of(self, url)
            for kombu_url in (address.make_kombu_url(url), address.make_stock_kombu_url(url)):
                with connect(self, kombu_url) as connection:
                    Producer(connection).publish("x", routing_key=A)
            self.assertEqual(client.llen(A), 2)
            client.flushdb()

    def test_an_address_with_tls_sends_nothing_in_the_clear(self) -> None:
        first: list[bytes] = []
        with socket.create_server(("127.0.0.1", 0)) as server:

            def answer() -> None:
                with server.accept()[0] as client:
                    first.append(client.recv(1))

            thread = threading.Thread(target=answer)
            thread.start()
            url = address.make_kombu_url(f"rediss://:secret@127.0.0.1:{server.getsockname()[1]}/0")
            with self.assertRaises(redis.ConnectionError):
                connect(self, url).transport.establish_connection()
            thread.join()
        self.assertEqual(first, [b"\x16"])  # a handshake

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
        self.assertEqual(qos.unsettled_by_server[consumer.channel.server], [])

    def test_a_connection_to_a_dead_broker_is_closed_as_celery_closes_it(self) -> None:
        """Twice: kombu's own transport needs the address for the second time, which `collect` has forgotten."""
        connection = connect(self, self.url)
        held: list[kombu.Message] = []
        for queue in (A, B):  # a channel each, with a read under way
            Consumer(
                connection.channel() if queue == B else connection, [Queue(queue)], on_message=held.append
            ).consume()
        self.send("x")
        connection.drain_events(timeout=PATIENCE_S)
        with self.assertRaises(TimeoutError):
            connection.drain_events(timeout=0.05)
        wait_for_its_log(self.client)
        self.broker.kill()
        connection.collect()
        connection.close()
        self.broker.start()
        self.assertEqual(self.driven().get(1), ["x"])

    def test_messages_that_another_has_restored_meanwhile_are_not_doubled(self) -> None:
        self.send("x")
        consumer = self.driven()
        consumer.get(1)
        consumer.consumer.cancel()
        with connect(self, self.url, visibility_timeout=-10) as other:
            other.default_channel.qos.restore_visible()
        consumer.connection.close()
        self.assertEqual(self.client.llen(address.make_queue_key(A, 2)), 1)

    def test_the_stock_transport_consumes_what_ours_publishes_and_puts_back(self) -> None:
        self.send(*range(3))
        first = self.driven(prefetch=2)
        first.get(2)
        first.connection.close()
        stock = Driven(self, address.make_stock_kombu_url(self.broker.url), [A])
        self.assertEqual(stock.get(3), [0, 1, 2])


class StoredTests(OnOwnBroker):
    """The keys in the server and their values are as kombu's own transport leaves them."""

    def setUp(self) -> None:
        super().setUp()
        self.urls = address.make_stock_kombu_url(self.broker.url), self.url

    def stored(self) -> dict[Any, Any]:
        """Return the values of all keys, and of sorted sets the members without the times."""
        readers: dict[Any, Callable[[Any], Any]] = {
            b"list": lambda key: (self.client.lrange(key, 0, -1), self.client.pttl(key) > 0),
            b"set": self.client.smembers,
            b"zset": lambda key: self.client.zrange(key, 0, -1),
            b"hash": self.client.hgetall,
        }
        return {key: readers[self.client.type(key)](key) for key in self.client.scan_iter()}

    def assert_alike(self, act: Callable[[kombu.Connection], object]) -> None:
        """After the same acts, at each of which `act` yields, the same is stored; the tags count from 1 on."""
        found: list[list[dict[bytes, Any]]] = []
        for url in self.urls:
            self.client.flushall()
            tags = (f"tag-{number}" for number in itertools.count(1))
            with mock.patch("kombu.transport.virtual.base.uuid", lambda tags=tags: next(tags)):
                with connect(self, url) as connection:
                    found.append([self.stored() for _ in act(connection)])  # type: ignore[attr-defined]
                found[-1].append(self.stored())
        self.assertGreater(len(found[0][0]), 0)
        for stock, ours in zip(*found, strict=True):
            self.assertEqual(ours, stock)

    def test_messages_of_all_priorities(self) -> None:
        def act(connection: kombu.Connection) -> Iterator[None]:
            producer = Producer(connection, serializer="json")
            for priority in (0, 1, 2, 3, 4, 9, 77, -1):
                producer.publish({"ä": priority}, routing_key=A, priority=priority, headers={"x": "ü"})
            yield

        self.assert_alike(act)

    def test_bindings_and_what_is_sent_through_them(self) -> None:
        exchanges = [Exchange("direct.e", "direct"), Exchange("topic.e", "topic"), Exchange("fanout.e", "fanout")]

        def act(connection: kombu.Connection) -> Iterator[None]:
            channel = connection.default_channel
            bound = [Queue(f"{exchange.name}.q", exchange, routing_key="a.*")(channel) for exchange in exchanges]
            bound += [Queue(f"{exchange.name}.q", exchange, expires=10.0)(channel) for exchange in exchanges[:1]]
            bound.append(Queue("gone.q", exchanges[2], routing_key="#", auto_delete=True)(channel))
            for queue in bound:
                queue.declare()
                yield
            listener = Consumer(channel, bound[-1:], on_message=print)
            listener.consume()
            for exchange in exchanges:
                for key in ("a.*", "a.b", "direct.e.q"):
                    Producer(channel, exchange=exchange(channel), serializer="json").publish("x", routing_key=key)
                    yield
            bound[0].delete()
            listener.cancel()
            yield

        self.assert_alike(act)

    def test_messages_that_are_held_and_go_back(self) -> None:
        def act(connection: kombu.Connection) -> Iterator[None]:
            channel = connection.default_channel
            Queue(A, Exchange("inference"), routing_key="a")(channel).declare()
            producer = Producer(channel, exchange=Exchange("inference"), serializer="json")
            for body in "xyz":
                producer.publish(body, routing_key="a", priority=2)
            first, second, _ = (channel.basic_get(A) for _ in range(3))
            yield
            first.ack()
            yield
            second.requeue()
            yield

        self.assert_alike(act)

    def test_broadcasts_of_each_are_heard_by_the_other(self) -> None:
        for sender, listener in itertools.permutations(self.urls):
            exchange = Exchange("shouts", type="fanout")
            heard = Driven(self, listener, [A])
            ears = Queue("ears", exchange, routing_key="to.#")
            Consumer(
                heard.connection.channel(), [ears], on_message=heard.receive, accept=["json"], no_ack=True
            ).consume()
            heard.turn()
            with connect(self, sender) as connection:
                producer = Producer(connection, exchange=exchange, serializer="json")
                eventually(self.client.pubsub_numpat, "it listens")
                producer.publish("hello", routing_key="to.you")
                self.assertEqual(heard.get(1), ["hello"])
            heard.connection.close()


class BroadcastTests(OnOwnBroker):
    def setUp(self) -> None:
        super().setUp()
        self.heard = self.driven()
        self.channel = self.heard.connection.channel()
        self.exchange = Exchange("shouts", type="fanout")
        self.listener = self.listen("ears")

    def listen(self, queue: str) -> Consumer:
        listener = Consumer(
            self.channel,
            [Queue(queue, self.exchange, routing_key=queue)],
            on_message=self.heard.receive,
            accept=["json"],
            no_ack=True,
        )
        listener.consume()
        self.heard.turn()
        return listener

    def shout(self, body: str, queue: str = "ears") -> None:
        with connect(self, self.url) as connection:
            Producer(connection, exchange=self.exchange, serializer="json").publish(body, routing_key=queue)

    def test_a_connection_that_gives_no_sign_of_life_is_replaced(self) -> None:
        with mock.patch.object(self.channel.broadcasts.connection, "next_health_check", 0):
            for _ in range(broadcasts.MOST_MISSED):  # the answers are not read
                self.channel.connection.check_health()
            self.channel.connection.check_health()
        self.assertFalse(self.channel.broadcasts.connection.is_connected)
        self.heard.turn()
        self.shout("hello")
        self.assertEqual(self.heard.get(1), ["hello"])

    def test_signs_of_life_are_no_messages(self) -> None:
        with mock.patch.object(self.channel.broadcasts.connection, "next_health_check", 0):
            self.channel.connection.check_health()
        self.shout("hello")
        self.assertEqual(self.heard.get(1), ["hello"])

    def test_what_is_cancelled_is_heard_no_more_and_the_rest_is(self) -> None:
        more = self.listen("more")
        self.listener.cancel()
        self.shout("not heard")
        self.shout("hello", queue="more")
        self.assertEqual(self.heard.get(1), ["hello"])
        more.cancel()
        eventually(lambda: not self.client.pubsub_numpat(), "nobody listens")
        self.listen("ears")
        self.shout("again")
        self.assertEqual(self.heard.get(2), ["hello", "again"])


class BindingTests(OnOwnBroker):
    """Bindings of queues that expire, such as those of answers to `celery inspect`."""

    def test_they_are_kept_while_their_queue_is_consumed_and_what_others_left_behind_is_deleted(self) -> None:
        consumer = self.driven()
        for exchange in ("gone", "stays"):
            self.client.sadd(f"_kombu.binding.{exchange}", "x")
            self.client.zadd("_kombu.binding_deadlines", {exchange: 1})
        self.client.sadd("_kombu.binding_permanent.stays", "x")
        consumer.channel.connection.renew_bindings()
        self.assertTrue(self.client.exists("_kombu.binding.gone"))
        consumer.consumer.add_queue(Queue("answers", Exchange("replies"), routing_key="r", expires=10.0))
        consumer.consumer.consume()
        self.client.delete("_kombu.binding.replies")
        consumer.channel.connection.renew_bindings()
        self.assertEqual(consumer.channel.get_table("replies"), [("r", "", "answers")])
        self.assertEqual(self.client.zrange("_kombu.binding_deadlines", 0, -1), [b"replies"])
        self.assertFalse(self.client.exists("_kombu.binding.gone"))
        self.assertTrue(self.client.exists("_kombu.binding.stays"))

    def test_a_server_that_refuses_them_is_no_reason_to_stop(self) -> None:
        consumer = self.driven()
        consumer.consumer.add_queue(Queue("answers", Exchange("replies"), routing_key="r", expires=10.0))
        consumer.consumer.consume()
        self.client.config_set("maxmemory", 1)
        with self.assertLogs("inference.broker", "WARNING"):
            consumer.channel.connection.renew_bindings()


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
