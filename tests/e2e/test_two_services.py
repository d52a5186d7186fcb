"""Two services on one broker, kept apart by SERVICE_PREFIX: neither sees, holds or runs anything of the other."""

from __future__ import annotations

from typing import ClassVar
from unittest import TestCase, skipUnless
from uuid import UUID

import redis
from django.test import tag

from inference.models import Status
from tests import rabbitmq
from tests.conditions import eventually
from tests.second_look import TAG
from tests.stack import ECHO, Stack

PREFIX = "shop."
TOGETHER = f"{ECHO}max_batch_size = 4\nmax_wait_ms = 60000\n".replace("max_batch_size = 16\n", "")


@tag(TAG)
class TwoServices(TestCase):
    environment: ClassVar[dict[str, str]] = {}

    def setUp(self) -> None:
        self.plain = self.start({})
        self.shop = self.start({"REDIS_URL": self.plain.environment["REDIS_URL"], "SERVICE_PREFIX": "shop"})

    def start(self, environment: dict[str, str]) -> Stack:
        """Its jobs run once there are four of them: fewer are held by the worker."""
        return self.enterContext(Stack(models=TOGETHER, replicas=1, environment={**self.environment, **environment}))

    def submit(self, stack: Stack, count: int) -> list[UUID]:
        return [stack.submit(f"text {number}") for number in range(count)]

    def succeeded(self, stack: Stack) -> int:
        return stack.jobs.filter(status=Status.SUCCEEDED).count()

    def run_four(self, stack: Stack) -> None:
        done = self.succeeded(stack)
        self.submit(stack, 4)
        self.wait_for(stack, done + 4)

    def wait_for(self, stack: Stack, succeeded: int) -> None:
        eventually(lambda: self.succeeded(stack) == succeeded, "its jobs run")

    def assert_apart(self) -> None:
        """Each runs its own jobs, also while the other one's worker is away."""
        for alive, dead in ((self.plain, self.shop), (self.shop, self.plain)):
            done = self.succeeded(dead)
            dead.children["worker1"].stop()
            self.submit(dead, 4)
            self.run_four(alive)
            self.assertEqual(self.succeeded(dead), done)
            dead.start_worker()
            self.wait_for(dead, done + 4)

    def assert_mirrored(self, names: set[str]) -> None:
        """For each name of one service there is one of the other, and none for both."""
        of_shop = {name for name in names if PREFIX in name}
        self.assertEqual({name.replace(PREFIX, "") for name in of_shop}, names - of_shop)
        self.assertTrue(of_shop)


class OnRedisTests(TwoServices):
    def test_they_share_no_key_no_channel_and_no_job(self) -> None:
        for stack in (self.plain, self.shop):
            held = self.submit(stack, 3)
            stack.get(f"/v1/jobs/{held[0]}?wait=0.1")  # who waits listens
        client = redis.Redis.from_url(self.plain.environment["REDIS_URL"], decode_responses=True)
        self.addCleanup(client.close)
        eventually(lambda: client.hlen("unacked") == client.hlen("shop.unacked") == 3, "the workers hold them")
        self.assert_mirrored({str(key) for key in client.scan_iter()})
        eventually(lambda: len(client.pubsub_channels()) == 2, "both listen")
        self.assert_mirrored({str(channel) for channel in client.pubsub_channels()})
        for stack in (self.plain, self.shop):
            self.submit(stack, 1)
            self.wait_for(stack, 4)
        self.assert_apart()


@skipUnless(rabbitmq.is_installed(), "rabbitmq-server is not installed")
class OnRabbitMQTests(TwoServices):
    server: ClassVar[rabbitmq.RabbitMQ]

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = cls.enterClassContext(rabbitmq.RabbitMQ())
        cls.environment = {"BROKER_URL": cls.server.url}

    def test_they_share_no_queue_no_exchange_and_no_job(self) -> None:
        for kind in ("amqqueue", "exchange"):
            self.assert_mirrored({name for name in self.server.names_of(kind) if not name.startswith("amq.")})
        self.assert_apart()
