"""The service with its messages in RabbitMQ, which is restarted, forgets and refuses queues, takes messages away."""

from __future__ import annotations

from typing import ClassVar
from unittest import skipUnless

import kombu
from django.conf import settings

from inference.models import Status, WorkerState
from tests import rabbitmq
from tests.conditions import eventually
from tests.e2e.case import StackCase
from tests.stack import ECHO

QUEUE, OTHER = "inference.echo", "inference.other"


@skipUnless(rabbitmq.is_installed(), "rabbitmq-server is not installed")
class RabbitMQTests(StackCase):
    server: ClassVar[rabbitmq.RabbitMQ]

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = cls.enterClassContext(rabbitmq.RabbitMQ())
        models = ECHO + ECHO.replace("[echo]", "[other]")
        cls.options = {"models": models, "environment": {"BROKER_URL": cls.server.url}}
        super().setUpClass()

    def assert_served(self, count: int = 20) -> None:
        ids = self.stack.submit_together(f"text {number}" for number in range(count))
        self.assertEqual({job.status for job in self.stack.finished(*ids)}, {Status.SUCCEEDED})

    def make_anew(self, queue: str, arguments: dict[str, str]) -> None:
        with kombu.Connection(self.server.url) as connection, connection.channel() as channel:
            declared = kombu.Queue(queue, channel=channel, queue_arguments=arguments)
            declared.delete()
            declared.queue_declare()

    def connections(self) -> int:
        return sum("Connected to amqp" in line for line in self.stack.log)

    def limit_acknowledgements(self, limit_ms: int) -> None:
        names = "[consumer_timeout, channel_tick_interval]"
        self.server.evaluate(f"[application:set_env(rabbit, Name, {limit_ms}) || Name <- {names}]")
        self.server.cut_connections()  # the new limit is of new channels

    def test_jobs_run_from_a_quorum_queue_and_no_other_queue_is_made(self) -> None:
        self.assert_served()
        queues = self.server.control("list_queues", "name", "type").splitlines()
        found = sorted(line for line in queues[1:] if "celery" not in line)
        self.assertEqual(found, [f"{QUEUE}\tquorum", f"{OTHER}\tquorum"])
        self.assertFalse([line for line in queues if "delayed" in line])

    def test_a_queue_that_is_deleted_under_a_worker_and_made_anew_at_once_is_consumed_again(self) -> None:
        """RabbitMQ before 4.0 does not tell consumers then, and takes as many new messages for doubles of old ones."""
        self.assert_served(100)
        self.make_anew(QUEUE, {"x-queue-type": "quorum"})
        self.assert_served(1)

    def test_a_queue_with_other_arguments_is_waited_for_while_the_other_models_are_served(self) -> None:
        self.make_anew(OTHER, {"x-queue-type": "classic"})
        workers = self.stack.workers.filter(state=WorkerState.DEGRADED, error__contains=f"delete_queue {OTHER}")
        eventually(workers.exists, "the worker's row says what to do")
        connections = self.connections()
        self.assertEqual(workers.get().model_names, ["echo"])
        eventually(lambda: f"delete_queue {OTHER}" in str(self.stack.get("/readyz").json["reasons"]), "so does it")
        waiting = self.stack.submit("text", model="other")
        self.assert_served(100)
        with kombu.Connection(self.server.url) as connection, connection.channel() as channel:
            kombu.Queue(OTHER, channel=channel).delete()
        self.assertEqual([job.status for job in self.stack.finished(waiting)], [Status.SUCCEEDED])
        eventually(lambda: self.stack.workers.get().error == "", "the worker's row is well again")
        self.assertEqual(self.connections(), connections)

    def test_a_channel_that_the_broker_closes_is_opened_again_and_its_jobs_end(self) -> None:
        """RabbitMQ does so when a message was not acknowledged for half an hour: five seconds, here.

        The other jobs are to be acknowledged within these, on any machine.
        """
        self.limit_acknowledgements(5_000)
        self.addCleanup(self.limit_acknowledgements, 1_800_000)
        self.assert_served()
        self.hold()
        slow = self.stack.submit({"text": "slow", "fail": "held"})
        eventually(lambda: self.is_running(slow), "it runs, in a batch without those that follow")
        self.assert_served()
        self.log_shows("PRECONDITION_FAILED", "the broker closes the channel")
        self.stack.release()
        self.assertEqual([job.status for job in self.stack.finished(slow)], [Status.SUCCEEDED])
        self.assert_served()

    def test_a_worker_s_connection_has_a_heartbeat_so_that_a_frozen_one_keeps_no_messages(self) -> None:
        self.assert_served()
        found = self.server.evaluate("rabbit_networking:connection_info_all([timeout])")
        self.assertIn(f"{{timeout, {settings.CELERY_BROKER_HEARTBEAT}}}", found)

    def test_a_restart_of_the_broker_loses_nothing(self) -> None:
        ids = [self.stack.submit("before") for _ in range(20)]
        self.server.stop()
        ids += [self.stack.submit("meanwhile") for _ in range(20)]
        self.server.start()
        ids += [self.stack.submit("after") for _ in range(20)]
        self.assertEqual({job.status for job in self.stack.finished(*ids)}, {Status.SUCCEEDED})

    def test_a_queue_that_the_broker_could_not_recover_is_made_anew(self) -> None:
        self.assert_served()
        self.server.kill_before_the_queues_are_on_disk()
        self.server.start()
        self.assert_served()
        self.log_shows("breaks the connection", "the worker tells of it")
