"""Publishing and counting through kombu, for a broker other than our Redis."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import kombu
from django.conf import settings
from kombu import pools
from kombu.exceptions import KombuError

from inference.broker import messages as wire
from inference.broker.breaker import Breaker
from inference.broker.messages import JobMessage

TIMEOUT_S = 1.0
ONCE_MORE = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}


class AnyBroker:
    def __init__(self, url: str) -> None:
        self.connection = kombu.Connection(url, connect_timeout=TIMEOUT_S, transport_options=_options())
        transport = self.connection.transport
        self.is_redis = transport.driver_type == "redis"
        failures = {KombuError, OSError, *transport.connection_errors, *transport.channel_errors}
        self.breaker = Breaker(*failures, slots=pools.get_limit())

    def publish(self, messages: Sequence[JobMessage]) -> None:
        with self.breaker.call(), pools.producers[self.connection].acquire(block=True, timeout=TIMEOUT_S) as producer:
            for message in messages:
                _send(producer, message, message.redis_priority if self.is_redis else message.amqp_priority)

    def queue_lengths(self, queues: Sequence[str]) -> dict[str, int]:
        with (
            self.breaker.call(),
            pools.connections[self.connection].acquire(block=True, timeout=TIMEOUT_S) as connection,
        ):
            return {queue: _length(connection, queue) for queue in queues}


def _options() -> dict[str, Any]:
    """Those of the workers, but less patient."""
    options = {**settings.CELERY_BROKER_TRANSPORT_OPTIONS, **ONCE_MORE, "connect_retries_timeout": TIMEOUT_S}
    return {name: TIMEOUT_S if name == "socket_timeout" else value for name, value in options.items()}


@functools.lru_cache(maxsize=2)
def _broker(url: str) -> AnyBroker:
    return AnyBroker(url)


def publish(messages: Sequence[JobMessage]) -> None:
    """Raises `BrokerUnavailable`."""
    _broker(settings.CELERY_BROKER_URL).publish(messages)


def queue_lengths(queues: Sequence[str]) -> dict[str, int]:
    """Raises `BrokerUnavailable`."""
    return _broker(settings.CELERY_BROKER_URL).queue_lengths(queues)


def _send(producer: kombu.Producer, message: JobMessage, priority: int) -> None:
    producer.publish(
        wire.body(message),
        routing_key=message.queue,
        serializer="json",
        headers=wire.headers(message),
        declare=[_declared(message.queue)],
        correlation_id=message.job_id,
        reply_to="",
        delivery_mode=2,
        priority=priority,
        retry=True,
        retry_policy=ONCE_MORE,
        timeout=TIMEOUT_S,
    )


def _declared(queue: str) -> kombu.Queue:
    """With the arguments with which the workers declare it."""
    return next((known for known in settings.CELERY_TASK_QUEUES if known.name == queue), kombu.Queue(queue))


def _length(connection: kombu.Connection, queue: str) -> int:
    """A queue that nobody has declared yet is empty; the error has closed the channel, so each has its own."""
    with connection.channel() as channel:
        try:
            return int(channel.queue_declare(queue, passive=True).message_count)
        except connection.channel_errors as error:
            if getattr(error, "reply_code", getattr(error, "code", None)) in (404, "404"):
                return 0
            raise
