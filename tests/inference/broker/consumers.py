"""A kombu consumer driven by kombu's event loop, as a Celery worker drives it."""

import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import TestCase

import kombu
from kombu.asynchronous import Hub

from inference.broker import address
from tests.conditions import PATIENCE_S


def connect(test: TestCase, url: str, **options: Any) -> kombu.Connection:
    connection = kombu.Connection(url, transport_options={**address.make_kombu_options(url), **options})
    test.addCleanup(connection.close)
    return connection


class Driven:
    """Keeps what it gets until the test acknowledges it."""

    def __init__(self, test: TestCase, url: str, queues: Sequence[str], *, prefetch: int = 0, **options: Any) -> None:
        self.connection = connect(test, url, **options)
        self.messages: list[kombu.Message] = []
        self.hub = Hub()
        test.addCleanup(self.hub.close)
        self.connection.transport.register_with_event_loop(self.connection.connection, self.hub)
        self.channel = self.connection.channel()
        declared = [kombu.Queue(name, kombu.Exchange("inference"), routing_key=name) for name in queues]
        self.consumer = kombu.Consumer(self.channel, declared, on_message=self.receive, accept=["json"])
        self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()
        self.loop = self.hub.create_loop()
        self.hub.timer.call_repeatedly(0.02, lambda: None)  # the loop turns, whatever happens

    def receive(self, message: kombu.Message) -> None:
        self.messages.append(message)

    def run_until(self, condition: Callable[[], Any]) -> None:
        """Turn the loop until the condition holds."""
        give_up_at = time.monotonic() + PATIENCE_S  # a limit of patience
        while not condition():
            if time.monotonic() > give_up_at:
                raise AssertionError(f"not within {PATIENCE_S:g} s: {condition}; got {self.bodies}")
            next(self.loop)

    def get(self, count: int) -> list[Any]:
        """The bodies of all messages so far, once there are `count`."""
        self.run_until(lambda: len(self.messages) >= count)
        return self.bodies

    def turn(self, times: int = 5) -> None:
        """Turns of the loop in which what is due is sent and answered."""
        for _ in range(times):
            next(self.loop)

    def acknowledge(self, count: int | None = None) -> None:
        """The oldest `count`, or all."""
        done, self.messages = self.messages[:count], self.messages[count:] if count else []
        for message in done:
            message.ack()

    @property
    def bodies(self) -> list[Any]:
        return [message.payload for message in self.messages]
