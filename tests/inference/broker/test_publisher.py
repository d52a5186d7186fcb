import contextlib
import json
import os
import threading
from base64 import b64decode
from collections import deque
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any
from unittest import mock
from uuid import uuid4

import kombu
from celery import Celery
from django.conf import settings
from django.test import SimpleTestCase, override_settings

from inference import budget
from inference.broker import address, circuit_breaker, messages, other_broker_publisher, publisher, redis_client
from inference.broker.messages import JobMessage
from inference.broker.other_broker_publisher import PublishRefused
from inference.errors import BrokerUnavailable
from inference.values.priority import Priority
from tests.conditions import PATIENCE_S, eventually
from tests.inference.broker.servers import client_of, own_broker, resume, stall

QUEUE = "inference.test-publish"


def job_message(**values: Any) -> JobMessage:
    defaults: dict[str, Any] = {
        "job_id": str(uuid4()), "model": "test-publish", "queue": QUEUE, "group": "a1b2", "size": 2, "length": 17,
        "priority": 2, "created_at": 1760000000.25, "expires_at": None,
    }  # fmt: skip
    return JobMessage(**(defaults | values))


def settings_for(url: str) -> dict[str, object]:
    """The settings that follow from REDIS_URL."""
    broker_url = address.make_kombu_url(url)
    return {
        "REDIS_URL": url,
        "CELERY_BROKER_URL": broker_url,
        "CELERY_BROKER_TRANSPORT_OPTIONS": address.make_kombu_options(broker_url),
    }


def stock_url() -> str:
    return address.make_stock_kombu_url(settings.REDIS_URL)


def stock_connection() -> kombu.Connection:
    return kombu.Connection(stock_url(), transport_options=address.make_kombu_options(stock_url()))


def received(connection: kombu.Connection, count: int) -> list[kombu.Message]:
    """The next messages in the order of a consumer, acknowledged."""
    arrived: list[kombu.Message] = []
    queue = kombu.Queue(QUEUE, kombu.Exchange("inference"), routing_key=QUEUE)
    with kombu.Consumer(connection, [queue], on_message=arrived.append, accept=["json"]):
        while len(arrived) < count:
            connection.drain_events(timeout=PATIENCE_S)
    for message in arrived:
        message.ack()
    return arrived


class PublishTests(SimpleTestCase):
    """On the broker of the test run."""

    def setUp(self) -> None:
        self.redis = redis_client.get_client()
        self.redis.flushdb()

    def waiting(self, step: int = 2) -> list[dict[str, Any]]:
        """Oldest first."""
        return [json.loads(text) for text in self.redis.lrange(address.make_queue_key(QUEUE, step), 0, -1)[::-1]]

    def test_a_message_is_what_celery_and_kombu_write_for_the_same_task(self) -> None:
        message = job_message()
        with Celery("stock", broker=stock_url(), set_as_current=False) as app:
            app.conf.broker_transport_options = address.make_kombu_options(stock_url())
            app.send_task(
                messages.TASK,
                args=[message.job_id],
                kwargs=message.hints,
                task_id=message.job_id,
                queue=QUEUE,
                priority=message.priority,
                ignore_result=True,
                reply_to="",
                headers={"rows": message.size},
            )
            publisher.publish_messages([message])
        theirs, ours = self.waiting()
        theirs["properties"] |= {"delivery_tag": ours["properties"]["delivery_tag"], "reply_to": ""}
        for envelope in (theirs, ours):
            envelope["body"] = json.loads(b64decode(envelope["body"]))
        self.assertEqual(ours, theirs)

    def test_a_stock_consumer_gets_the_task_and_its_hints(self) -> None:
        message = job_message(expires_at=1760000600.5)
        publisher.publish_messages([message])
        with stock_connection() as connection:
            [got] = received(connection, 1)
        self.assertEqual((got.headers["task"], got.headers["id"]), ("inference.run", message.job_id))
        self.assertEqual(got.payload[:2], [[message.job_id], message.hints])

    def test_priorities_go_one_after_the_other_each_in_order_and_what_is_sent_again_first_of_its_own(self) -> None:
        sent = [job_message(priority=priority) for priority in (*reversed(Priority), *reversed(Priority))]
        again = [job_message(priority=priority, recovered=True) for priority in (*Priority, *Priority)]
        publisher.publish_messages([*sent, *again])
        order = sorted([*again, *sent], key=attrgetter("priority"))
        with stock_connection() as connection:
            arrived = [got.headers["id"] for got in received(connection, len(order))]
        self.assertEqual(arrived, [message.job_id for message in order])

    def test_thousands_that_are_sent_again_keep_their_order(self) -> None:
        sent = [job_message(priority=3, recovered=True) for _ in range(publisher.CHUNK * 2 + 1)]
        publisher.publish_messages(sent)
        self.assertEqual([waiting["headers"]["id"] for waiting in self.waiting(3)], [each.job_id for each in sent])

    def test_a_request_that_has_spent_its_time_calls_no_broker_and_keeps_no_other_from_it(self) -> None:
        with mock.patch.dict(os.environ, DATABASE_ANSWER_S="4"), budget.request_budget():
            waited = budget.counted_wait()
            with waited:
                waited.began_at -= 9.0
            with self.assertRaisesRegex(BrokerUnavailable, "all the time"):
                publisher.publish_messages([job_message()])
        self.assertEqual(self.waiting(), [])
        publisher.publish_messages([job_message()])
        self.assertEqual(len(self.waiting()), 1)

    def test_what_an_earlier_version_sent_again_is_still_consumed(self) -> None:
        self.redis.lpush(address.make_queue_key(QUEUE, 0), messages.make_redis_envelope(job_message()))
        with stock_connection() as connection:
            self.assertEqual(len(received(connection, 1)), 1)

    def test_a_queue_that_is_refused_keeps_no_message_from_the_others_and_no_caller_from_the_broker(self) -> None:
        bad = "inference.another-type"
        self.redis.set(address.make_queue_key(bad, 2), "no list")
        with self.assertRaisesRegex(PublishRefused, f"{bad}: .*WRONGTYPE") as caught:
            publisher.publish_messages([job_message(queue=bad), job_message(), job_message(queue=bad, priority=1)])
        self.assertEqual(caught.exception.queues, {bad})
        self.assertEqual(len(self.waiting()), 1)
        self.assertEqual(publisher.count_messages([QUEUE]), {QUEUE: 1})
        with self.assertRaisesRegex(PublishRefused, "WRONGTYPE"):
            publisher.count_messages([bad])
        publisher.publish_messages([job_message()])

    def test_lengths_are_counted_over_all_priorities(self) -> None:
        publisher.publish_messages([job_message(priority=1), job_message(priority=3), job_message(recovered=True)])
        self.assertEqual(publisher.count_messages([QUEUE, "inference.other"]), {QUEUE: 3, "inference.other": 0})
        self.assertEqual(
            publisher.list_waiting_priorities([QUEUE, "inference.other"]), {QUEUE: {1, 2, 3}, "inference.other": set()}
        )


class CountedTests(SimpleTestCase):
    """On a broker of its own, whose commands and clients are all of this process."""

    def setUp(self) -> None:
        self.enterContext(mock.patch.object(redis_client, "TIMEOUT_S", PATIENCE_S))
        broker = own_broker(self)
        self.redis = client_of(self, broker.url)
        self.enterContext(override_settings(**settings_for(broker.url)))

    def calls(self) -> int:
        return int(self.redis.info("commandstats").get("cmdstat_lpush", {"calls": 0})["calls"])

    def test_many_messages_go_in_a_few_commands(self) -> None:
        publisher.publish_messages([job_message(created_at=float(n)) for n in range(publisher.CHUNK * 2 + 1)])
        self.assertEqual(self.calls(), 3)
        self.assertEqual(publisher.count_messages([QUEUE]), {QUEUE: publisher.CHUNK * 2 + 1})

    def test_512_threads_share_a_few_connections(self) -> None:
        def clients() -> int:
            return len(self.redis.client_list())

        before, seen = clients(), [0]
        gate = threading.Barrier(513)

        def send() -> None:
            gate.wait()
            eventually(sent)  # who waits too long for a connection is refused, and nothing was sent

        def sent() -> bool:
            with contextlib.suppress(BrokerUnavailable):
                publisher.publish_messages([job_message()])
                return True
            return False

        def all_ended() -> bool:
            seen.append(clients())
            return not any(thread.is_alive() for thread in threads)

        threads = [threading.Thread(target=send) for _ in range(512)]
        for thread in threads:
            thread.start()
        gate.wait()
        eventually(all_ended)
        self.assertEqual(publisher.count_messages([QUEUE]), {QUEUE: 512})
        self.assertLessEqual(max(seen), before + redis_client.CONNECTIONS)


class BreakerTests(SimpleTestCase):
    def test_a_call_may_end_the_rest_while_another_thread_looks(self) -> None:
        away = circuit_breaker.CircuitBreaker(OSError, slots=2, rest_s=3600)
        with away.guard_call():  # it ends after the other one has failed, and while a third one looks
            with self.assertRaises(BrokerUnavailable), away.guard_call():
                raise OSError

            def end() -> float:
                away._probe_at = None  # noqa: SLF001 - as the end of a call does
                return 0.0

            with mock.patch.object(circuit_breaker, "time", mock.Mock(monotonic=end)):
                self.assertTrue(away.is_open())
        self.assertFalse(away.is_open())


class AnyBrokerTests(SimpleTestCase):
    """Through kombu, on brokers other than our Redis."""

    @override_settings(CELERY_BROKER_URL="memory://", CELERY_BROKER_TRANSPORT_OPTIONS={})
    def test_messages_are_published_and_counted(self) -> None:
        message = job_message()
        self.assertEqual(publisher.count_messages([QUEUE]), {QUEUE: 0})
        publisher.publish_messages([message, job_message()])
        self.assertEqual(publisher.count_messages([QUEUE]), {QUEUE: 2})
        with kombu.Connection("memory://") as connection:
            got, _ = received(connection, 2)
        self.assertEqual(got.payload[:2], [[message.job_id], message.hints])
        self.assertEqual(got.headers, messages.make_headers(message))

    def test_another_redis_than_that_of_the_notices_gets_them_in_the_order_of_priorities(self) -> None:
        other = own_broker(self).url
        sent = [job_message(priority=3), job_message(priority=1), job_message(priority=3, recovered=True)]
        with override_settings(CELERY_BROKER_URL=address.make_stock_kombu_url(other)):
            publisher.publish_messages(sent)
            self.assertEqual(publisher.count_messages([QUEUE]), {QUEUE: 3})
        url = address.make_stock_kombu_url(other)
        with kombu.Connection(url, transport_options=address.make_kombu_options(url)) as connection:
            arrived = [got.headers["id"] for got in received(connection, 3)]
        self.assertEqual(arrived, [sent[1].job_id, sent[0].job_id, sent[2].job_id])

    def test_idle_connections_that_several_threads_close_at_once(self) -> None:
        class Shared(deque[Any]):
            """The last one is taken by another thread, once this one has seen that there is one."""

            def __bool__(self) -> bool:
                found = len(self) > 0
                if len(self) == 1:
                    self.clear()
                return found

        broker = other_broker_publisher.KombuPublisher("memory://")
        broker.idle = Shared([mock.Mock()])
        broker._close_idle()  # noqa: SLF001 - threads switch between a look and a pop
        self.assertEqual(len(broker.idle), 0)

    @override_settings(CELERY_BROKER_URL="amqp://127.0.0.1:1//", CELERY_BROKER_TRANSPORT_OPTIONS={})
    def test_a_broker_that_is_away_is_a_broker_unavailable(self) -> None:
        for call in (lambda: publisher.publish_messages([job_message()]), lambda: publisher.count_messages([QUEUE])):
            with self.assertRaises(BrokerUnavailable):
                call()


class BrokerAwayTests(SimpleTestCase):
    """On a broker of its own, which is killed, stalled and filled up."""

    def setUp(self) -> None:
        self.broker = own_broker(self)
        overridden = override_settings(**settings_for(self.broker.url))
        overridden.enable()
        self.addCleanup(overridden.disable)
        self.enterContext(mock.patch.object(redis_client, "breaker", redis_client.make_breaker()))
        self.enterContext(mock.patch.object(redis_client, "TIMEOUT_S", 1.0))  # of who asks one that is stalled
        eventually(self.delivered, "the broker takes messages")

    def refused(self) -> BrokerUnavailable:
        with self.assertRaises(BrokerUnavailable) as caught:
            publisher.publish_messages([job_message()])
        return caught.exception

    def delivered(self) -> bool:
        try:
            publisher.publish_messages([job_message()])
        except BrokerUnavailable:
            return False
        return True

    def stopped_clock(self) -> AbstractContextManager[object]:
        """A broker that has failed rests for as long as that."""
        return mock.patch.object(circuit_breaker, "time", mock.Mock(monotonic=lambda: 0.0))

    def test_a_dead_broker_fails_and_a_restarted_one_works_again(self) -> None:
        self.broker.kill()
        self.assertTrue(self.refused().retryable)
        with self.assertRaises(BrokerUnavailable):
            publisher.count_messages([QUEUE])
        self.broker.start()
        eventually(self.delivered, "publishing works again")

    def test_a_restart_between_two_calls_is_not_noticed(self) -> None:
        self.broker.stop()
        self.broker.start()
        publisher.publish_messages([job_message()])

    def test_a_stalled_broker_fails_and_then_fails_at_once_without_a_call(self) -> None:
        stall(self, self.broker)
        with self.stopped_clock():
            self.refused()
            with mock.patch.object(redis_client, "get_client") as client:
                for _ in range(100):
                    self.refused()
        client.assert_not_called()
        resume(self.broker)
        eventually(self.delivered, "publishing works again")

    def test_500_threads_do_not_queue_up_behind_a_stalled_broker(self) -> None:
        stall(self, self.broker)
        outcomes: list[bool] = []
        threads = [threading.Thread(target=lambda: outcomes.append(self.delivered())) for _ in range(500)]
        with self.stopped_clock(), mock.patch.object(redis_client, "get_client", wraps=redis_client.get_client) as get:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(outcomes, [False] * 500)
        self.assertLessEqual(get.call_count, redis_client.CONNECTIONS)

    def test_a_full_broker_is_a_broker_unavailable(self) -> None:
        client_of(self, self.broker.url).config_set("maxmemory", 1)
        self.assertIn("maxmemory", str(self.refused()))
        client_of(self, self.broker.url).config_set("maxmemory", 0)
        eventually(self.delivered, "publishing works again")

    def test_a_password_is_not_in_the_error(self) -> None:
        self.broker.kill()
        with override_settings(**settings_for("redis://:s3cret@127.0.0.1:1/0")):
            self.assertNotIn("s3cret", str(self.refused()))
