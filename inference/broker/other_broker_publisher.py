"""Functions that publish and count messages through kombu, for a broker other than the Redis at REDIS_URL."""

import contextlib
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NoReturn, TypeVar

import kombu
from amqp.exceptions import Blocked
from django.conf import settings
from kombu.exceptions import KombuError

from inference.broker import messages as wire
from inference.broker import queue_declaration
from inference.broker.circuit_breaker import CircuitBreaker
from inference.broker.messages import JobMessage
from inference.errors import BrokerUnavailable

T = TypeVar("T")

CONNECTIONS = 10  # for all threads of a process
TIMEOUT_S = 1.0


class PublishRefused(BrokerUnavailable):
    """The broker answers and refuses the call, for example because a queue exists with other arguments.

    If only some queues were refused, they are in `queues`, and the messages of the others were sent.
    """

    def __init__(self, message: str, *, queues: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.queues = frozenset(queues)


def raise_if_refused(reasons: Mapping[str, object]) -> None:
    """Raise `PublishRefused` if there are any `reasons`, which are by queue."""
    if reasons:
        raise PublishRefused("; ".join(f"{queue}: {reason}" for queue, reason in reasons.items()), queues=reasons)


class KombuPublisher:
    """A broker that kombu can reach, with a few connections that all threads share.

    A connection on which a call failed is closed, and never used again. All calls raise `BrokerUnavailable`.
    """

    def __init__(self, url: str) -> None:
        self.connect = functools.partial(
            kombu.Connection, url, connect_timeout=TIMEOUT_S, transport_options=_make_transport_options()
        )
        transport = self.connect().transport
        self.is_redis = transport.driver_type == "redis"
        self.refusals = transport.channel_errors
        self.breaker = CircuitBreaker(KombuError, OSError, *transport.connection_errors, slots=CONNECTIONS)
        self.idle: deque[kombu.Connection] = deque()

    def publish(self, messages: Sequence[JobMessage]) -> None:
        """Send all messages; those of a queue that is refused do not keep the others from being sent."""
        refused: dict[str, object] = {}
        by_queue = attrgetter("queue")
        for queue, group in itertools.groupby(sorted(messages, key=by_queue), by_queue):
            try:
                self._call(functools.partial(self._send, queue, list(group)))
            except PublishRefused as error:
                refused[queue] = error.message
        raise_if_refused(refused)

    def read_queue_lengths(self, names: Sequence[str]) -> dict[str, int]:
        return self._call(lambda connection: {name: _read_queue_length(connection, name) for name in names})

    def find_missing_exchanges(self, names: Iterable[str]) -> frozenset[str]:
        """Return those of the exchanges that do not exist."""
        return self._call(lambda connection: frozenset(name for name in names if not _has_exchange(connection, name)))

    def ping(self) -> None:
        self._call(lambda connection: connection.channel().close())

    def _send(self, queue: str, messages: Iterable[JobMessage], connection: kombu.Connection) -> None:
        """Send messages to one queue, and declare the queue before and after.

        Before, because it may have been deleted, and messages to no queue are dropped without an error. After, because
        the answer shows that the messages were read, which RabbitMQ does not do while it has an alarm.
        """
        unbound = queue_declaration.make_queue(queue, settings.SERVICE_PREFIX, settings.CELERY_BROKER_URL)
        declared = unbound.bind(connection.default_channel)
        declared.queue_declare()
        producer = connection.Producer()
        for message in messages:
            producer.publish(
                wire.make_body(message),
                routing_key=queue,
                serializer="json",
                headers=wire.make_headers(message),
                correlation_id=message.job_id,
                reply_to="",
                delivery_mode=2,
                priority=message.priority if self.is_redis else wire.AMQP_PRIORITIES[message.priority],
                timeout=TIMEOUT_S,
            )
        declared.queue_declare()

    def _call(self, action: Callable[[kombu.Connection], T]) -> T:
        with self.breaker.guard_call():
            try:
                return self._call_on_idle_connection(action)
            except self.refusals as error:
                refusal = error
        raise PublishRefused(f"The broker refuses: {refusal}") from refusal

    def _call_on_idle_connection(self, action: Callable[[kombu.Connection], T]) -> T:
        """Run a call on an idle connection.

        If that connection is lost, all idle ones are taken to be lost, and the call is repeated once on a new one.
        """
        try:
            return self._call_on_connection(self.idle.pop(), action)
        except (TimeoutError, Blocked, *self.refusals):
            raise
        except Exception:  # py-amqp raises many types if a connection is lost; an empty deque raises IndexError
            self._close_idle()
        return self._call_on_connection(self.connect(), action)

    def _call_on_connection(self, connection: kombu.Connection, action: Callable[[kombu.Connection], T]) -> T:
        try:
            result = action(connection)
        except BaseException:
            connection.collect()  # sends nothing to a server that may not answer
            raise
        self.idle.append(connection)
        return result

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):  # another thread may take the last one
            while True:
                self.idle.pop().collect()


def _make_transport_options() -> dict[str, Any]:
    """Return the transport options of the workers with shorter timeouts and a single retry."""
    once_more = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
    timeouts = ("socket_timeout", "connect_retries_timeout", "read_timeout", "write_timeout")
    options = {**settings.CELERY_BROKER_TRANSPORT_OPTIONS, **once_more, **dict.fromkeys(timeouts, TIMEOUT_S)}
    return {**options, "on_blocked": _raise_blocked}


def _raise_blocked(reason: str) -> NoReturn:
    raise Blocked("RabbitMQ takes no messages: its memory or disk is full.")


@functools.lru_cache(maxsize=2)
def get_publisher_for_url(url: str) -> KombuPublisher:
    return KombuPublisher(url)


def get_publisher() -> KombuPublisher:
    """Return the publisher to the broker at BROKER_URL."""
    return get_publisher_for_url(settings.CELERY_BROKER_URL)


@contextlib.contextmanager
def _open_probe_channel(connection: kombu.Connection) -> Iterator[Any]:
    """Open a channel to ask about a queue or an exchange that may not be declared yet.

    If it is not declared, the broker closes the channel, and the block ends without an error.
    """
    with connection.channel() as channel:
        try:
            yield channel
        except connection.channel_errors as error:
            if getattr(error, "reply_code", getattr(error, "code", None)) not in (404, "404"):
                raise


def _read_queue_length(connection: kombu.Connection, queue: str) -> int:
    with _open_probe_channel(connection) as channel:
        return int(channel.queue_declare(queue, passive=True).message_count)
    return 0


def _has_exchange(connection: kombu.Connection, exchange: str) -> bool:
    with _open_probe_channel(connection) as channel:
        kombu.Exchange(exchange).bind(channel).declare(passive=True)
        return True
    return False
