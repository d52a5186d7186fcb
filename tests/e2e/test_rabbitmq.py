"""The service with its messages in RabbitMQ, which is restarted, and takes messages away."""

from __future__ import annotations

from typing import ClassVar
from unittest import skipUnless

from inference.models import Status
from tests import rabbitmq
from tests.e2e.case import StackCase

QUEUE = "inference.echo"


@skipUnless(rabbitmq.is_installed(), "rabbitmq-server is not installed")
class RabbitMQTests(StackCase):
    server: ClassVar[rabbitmq.RabbitMQ]

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = cls.enterClassContext(rabbitmq.RabbitMQ())
        cls.options = {"environment": {"BROKER_URL": cls.server.url}}
        super().setUpClass()

    def assert_served(self) -> None:
        ids = [self.stack.submit(f"text {number}") for number in range(20)]
        self.assertEqual({job.status for job in self.stack.finished(*ids)}, {Status.SUCCEEDED})

    def limit_acknowledgements(self, limit_ms: int) -> None:
        names = "[consumer_timeout, channel_tick_interval]"
        self.server.control("eval", f"[application:set_env(rabbit, Name, {limit_ms}) || Name <- {names}].")
        self.server.control("close_all_connections", "the new limit is of new channels")

    def test_jobs_run_from_a_quorum_queue_and_no_other_queue_is_made(self):
        self.assert_served()
        queues = self.server.control("list_queues", "name", "type").splitlines()
        self.assertEqual([line for line in queues if "celery" not in line][1:], [f"{QUEUE}\tquorum"])
        self.assertFalse([line for line in queues if "delayed" in line])

    def test_a_channel_that_the_broker_closes_is_opened_again_and_its_jobs_end(self):
        """RabbitMQ does so when a message was not acknowledged for half an hour: a second, here."""
        self.limit_acknowledgements(1_000)
        self.addCleanup(self.limit_acknowledgements, 1_800_000)
        self.assert_served()
        slow = self.stack.submit({"text": "slow", "fail": "hang-sleep", "seconds": 4})
        self.assert_served()
        self.assertEqual([job.status for job in self.stack.finished(slow)], [Status.SUCCEEDED])
        self.assertIn("PRECONDITION_FAILED", "".join(self.stack.log))
        self.assert_served()

    def test_a_restart_of_the_broker_loses_nothing(self):
        ids = [self.stack.submit("before") for _ in range(20)]
        self.server.stop()
        ids += [self.stack.submit("meanwhile") for _ in range(20)]
        self.server.start()
        ids += [self.stack.submit("after") for _ in range(20)]
        self.assertEqual({job.status for job in self.stack.finished(*ids)}, {Status.SUCCEEDED})
