"""Publishing to a real RabbitMQ and counting in it, while it is restarted, refuses, and forgets."""

import re
import threading
from unittest import mock, skipUnless

import kombu
from django.test import SimpleTestCase, override_settings, tag

from inference.broker import other_broker_publisher, publisher, queue_declaration
from inference.errors import BrokerUnavailable
from inference.status import readiness
from tests import rabbitmq
from tests.conditions import PATIENCE_S, eventually
from tests.inference.broker.test_publisher import QUEUE, job_message
from tests.second_look import TAG

OTHER = "inference.test-other"


@skipUnless(rabbitmq.is_installed(), "rabbitmq-server is not installed")
@tag(TAG)
class RabbitMQTests(SimpleTestCase):
    server: rabbitmq.RabbitMQ

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.server = rabbitmq.RabbitMQ()
        cls.addClassCleanup(cls.server.close)
        cls.server.start()
        overridden = override_settings(
            CELERY_BROKER_URL=cls.server.url,
            CELERY_BROKER_TRANSPORT_OPTIONS={},
            CELERY_TASK_QUEUES=[queue_declaration.make_queue(name, "", cls.server.url) for name in (QUEUE, OTHER)],
        )
        overridden.enable()
        cls.addClassCleanup(overridden.disable)

    def setUp(self) -> None:
        self.be_patient_for(10.0)  # and not longer: who calls a server that is starting may get no answer
        self.connection = kombu.Connection(self.server.url)
        self.addCleanup(self.connection.release)
        for name in (QUEUE, OTHER):
            self.delete(name)

    def delete(self, queue: str) -> None:
        self.connection.ensure_connection(timeout=int(PATIENCE_S))
        with self.connection.channel() as channel:
            channel.queue_delete(queue)

    def be_patient_for(self, seconds: float) -> None:
        """So long a call may take."""
        self.enterContext(mock.patch.object(other_broker_publisher, "TIMEOUT_S", seconds))
        other_broker_publisher.get_publisher_for_url.cache_clear()

    def waiting(self, queue: str = QUEUE) -> int:
        return publisher.count_messages([queue])[queue]

    def is_delivered(self) -> bool:
        try:
            publisher.publish_messages([job_message()])
        except BrokerUnavailable:
            return False
        return True

    def use_many_connections(self) -> None:
        gate = threading.Barrier(8)

        def use() -> None:
            gate.wait()
            publisher.publish_messages([job_message()])
            publisher.count_messages([QUEUE])

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def test_messages_wait_in_quorum_queues_and_are_counted(self) -> None:
        self.assertEqual(publisher.count_messages([QUEUE, OTHER]), {QUEUE: 0, OTHER: 0})
        publisher.publish_messages([job_message(), job_message(queue=OTHER), job_message()])
        eventually(lambda: publisher.count_messages([QUEUE, OTHER]) == {QUEUE: 2, OTHER: 1}, "all are counted")
        types = self.server.evaluate('rabbit_amqqueue:info_all(<<"/">>, [name, type])')
        self.assertEqual(re.findall(r"{type, *(\w+)}", types), ["quorum", "quorum"])

    def test_one_that_is_away_is_named_and_after_a_restart_every_thread_publishes_and_counts_again(self) -> None:
        other_broker_publisher.get_publisher_for_url(self.server.url).breaker.rest_s = 0  # each call asks the server
        self.use_many_connections()
        self.server.write_to_disk()
        self.server.kill()
        for _ in range(3):  # each takes as long as connecting is tried
            self.assertRaises(BrokerUnavailable, publisher.count_messages, [QUEUE])
            self.assertRaises(BrokerUnavailable, publisher.publish_messages, [job_message()])
        [reason] = readiness.find_broker_problems()
        self.assertRegex(reason, "^The broker does not answer")
        self.assertNotIn("guest", reason)
        self.server.start()
        eventually(self.is_delivered, "publishing works again")
        self.assertEqual(list(readiness.find_broker_problems()), [])
        for _ in range(20):
            publisher.publish_messages([job_message()])
            publisher.count_messages([QUEUE])

    def test_a_restart_between_two_calls_is_not_noticed(self) -> None:
        self.use_many_connections()
        self.server.stop()
        self.server.start()
        publisher.publish_messages([job_message()])
        self.use_many_connections()

    def test_calls_during_a_kill_fail_as_broker_unavailable_only(self) -> None:
        wrong: list[BaseException] = []
        over = threading.Event()

        def use() -> None:
            while not over.is_set():
                try:
                    publisher.publish_messages([job_message(), job_message(queue=OTHER)])
                    publisher.count_messages([QUEUE, OTHER])
                except BrokerUnavailable:
                    over.wait(0.05)
                except BaseException as error:
                    wrong.append(error)
                    raise

        publisher.publish_messages([job_message(), job_message(queue=OTHER)])
        self.server.write_to_disk()
        self.addCleanup(over.set)  # else they would publish to the brokers of later tests
        threads = [threading.Thread(target=use, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        self.server.kill()
        self.server.start()
        eventually(self.is_delivered, "publishing works again")
        over.set()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_a_queue_that_was_deleted_is_there_again_with_the_next_message(self) -> None:
        publisher.publish_messages([job_message()])
        self.delete(QUEUE)
        self.assertEqual(self.waiting(), 0)
        publisher.publish_messages([job_message()])
        eventually(lambda: self.waiting() == 1, "the message waits")

    def test_a_queue_that_the_broker_refuses_keeps_nobody_from_the_others(self) -> None:
        with self.connection.channel() as channel:
            channel.queue_declare(QUEUE, durable=True, auto_delete=False)  # of the classic type
        for _ in range(3):
            with self.assertRaisesRegex(BrokerUnavailable, f"{QUEUE}.*x-queue-type"):
                publisher.publish_messages([job_message(), job_message(queue=OTHER)])
        eventually(lambda: self.waiting(OTHER) == 3, "the others' messages wait")

    def test_a_broker_with_an_alarm_refuses_instead_of_holding_its_callers(self) -> None:
        self.be_patient_for(1.0)
        other_broker_publisher.get_publisher_for_url(self.server.url).breaker.rest_s = 0  # each call asks the server
        self.allow_memory(0.0)
        self.addCleanup(self.allow_memory, 0.4)
        eventually(lambda: not self.is_delivered(), "publishing is refused")
        for _ in range(20):
            self.assertRaises(BrokerUnavailable, publisher.publish_messages, [job_message()])
        self.assertEqual(self.waiting(OTHER), 0)
        self.allow_memory(0.4)
        eventually(self.is_delivered, "publishing works again")

    def allow_memory(self, share: float) -> None:
        self.server.evaluate(f"vm_memory_monitor:set_vm_memory_high_watermark({share})")

    def test_ready_names_a_redis_of_the_notices_that_is_away(self) -> None:
        self.assertEqual(list(readiness.find_broker_problems()), [])
        with override_settings(REDIS_URL="redis://:s3cret@127.0.0.1:1/0"):
            [reason] = readiness.find_broker_problems()
        self.assertRegex(reason, "Redis of the notices")
        self.assertNotIn("s3cret", reason)
