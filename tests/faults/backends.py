"""What a service of the harness stores its jobs in, and what carries its messages."""

from __future__ import annotations

import contextlib
import json
import re
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

import kombu
from kombu.transport import pyamqp

from inference.broker.address import make_queue_key
from tests import rabbitmq
from tests.postgres import program
from tests.rabbitmq import RabbitMQ

SQLITE, POSTGRES = DATABASES = ("sqlite", "postgres")
REDIS, RABBITMQ = BROKERS = ("redis", "rabbitmq")
POOL_SIZE = "4"  # connections: so few that whoever keeps one while it waits is found out
NORMAL = 2  # priority
_JOB_ID = re.compile(r'\\?"id\\?": ?\\?"([0-9a-f-]{36})\\?"')
_BODY = re.compile(r'\\?"body\\?": ?\\?"([A-Za-z0-9+/]+=*)\\?"')
_OTHER = re.compile(r'\["([0-9a-f-]{36})", ?[0-9]+, ?[0-9]+\]')


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """Of a whole run."""

    database: str = SQLITE
    broker: str = REDIS
    ahead: bool = False  # the workers work ahead, as on a GPU

    def __str__(self) -> str:
        return f"{self.database} with {self.broker}{', working ahead' if self.ahead else ''}"

    def missing(self) -> str:
        """Why they cannot be started here, or nothing."""
        if self.broker == RABBITMQ and not rabbitmq.is_installed():
            return "rabbitmq-server is not installed"
        if self.database == POSTGRES:
            try:
                program("postgres")
            except FileNotFoundError as error:
                return str(error)
        return ""


class MessageBroker(Protocol):
    """The broker of the messages, as faults are done to it."""

    def kill(self) -> None: ...
    def start(self) -> None: ...
    def forget(self, queue: str) -> None:
        """Delete the queue, with all that waits in it."""

    def cut_connections(self) -> None:
        """All of them, except its own."""

    def put(self, queue: str, message: bytes | str) -> None:
        """A message as kombu would lay it into a Redis list, or anything else that is none."""

    def messages(self) -> tuple[dict[str, int], set[UUID]]:
        """Messages that wait by queue, and the jobs of those that a worker has taken and not acknowledged."""


class RedisBroker:
    """The embedded server of a stack, which starts and ends as one of its children."""

    def __init__(self, stack: Any) -> None:
        self.stack = stack

    def kill(self) -> None:
        self.stack.children["broker"].kill()

    def start(self) -> None:
        self.stack.start_broker()

    def forget(self, queue: str) -> None:
        with contextlib.closing(self.stack.redis()) as client:
            client.delete(*client.keys(f"{queue}*"), "none")

    def cut_connections(self) -> None:
        with contextlib.closing(self.stack.redis()) as client:
            for kind in ("normal", "pubsub"):
                client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")

    def put(self, queue: str, message: bytes | str) -> None:
        with contextlib.closing(self.stack.redis()) as client:
            client.lpush(make_queue_key(queue, NORMAL), message)

    def messages(self) -> tuple[dict[str, int], set[UUID]]:
        waiting: dict[str, int] = {}
        taken: set[UUID] = set()
        with contextlib.closing(self.stack.redis()) as client:
            for key in client.scan_iter():
                kind, name = client.type(key), key.decode(errors="replace")
                if kind == b"list" and name.startswith("inference."):
                    waiting[name] = client.llen(key)
                elif kind == b"hash":
                    taken |= {UUID(found) for value in client.hvals(key) for found in _job_ids(value)}
        return waiting, taken


class RabbitBroker:
    """A server beside the stack's own, which carries the notices only."""

    def __init__(self) -> None:
        self.server = RabbitMQ()

    @property
    def url(self) -> str:
        return self.server.url

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()

    def forget(self, queue: str) -> None:
        self.server.control("delete_queue", queue)

    def cut_connections(self) -> None:
        self.server.cut_connections()

    def put(self, queue: str, message: bytes | str) -> None:
        body, properties = _as_amqp(message)
        with kombu.Connection(self.url) as connection:
            channel = connection.default_channel
            assert isinstance(channel, pyamqp.Channel)
            prepared = channel.prepare_message(body, **properties)
            channel.basic_publish_confirm(prepared, routing_key=queue, timeout=5.0)

    def messages(self) -> tuple[dict[str, int], set[UUID]]:
        """What was taken and not acknowledged counts as waiting: a lost connection gives it back at once."""
        counts = self.server.messages().items()
        return {queue: count for queue, count in counts if queue.startswith("inference.")}, set()


def _as_amqp(message: bytes | str) -> tuple[bytes, dict[str, Any]]:
    """The body and properties that say the same as an envelope; what is none becomes the body."""
    raw = message.encode() if isinstance(message, str) else message
    with contextlib.suppress(ValueError, TypeError, KeyError):
        envelope = json.loads(raw)
        return b64decode(envelope["body"], validate=True), {
            "content_type": envelope["content-type"],
            "content_encoding": envelope["content-encoding"],
            "headers": envelope["headers"],
        }
    return raw, {"content_type": "application/json", "content_encoding": "utf-8"}


def _job_ids(text: bytes) -> Sequence[str]:
    """Of all jobs of a message."""
    found = _JOB_ID.findall(envelope := text.decode(errors="replace"))
    for body in _BODY.findall(envelope):
        with contextlib.suppress(ValueError):
            found += _OTHER.findall(b64decode(body).decode(errors="replace"))
    return found
