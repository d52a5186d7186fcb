"""The channel of the Redis transport, which consumes in bulk.

It extends kombu's virtual channel by the methods that kombu documents for that. What lies in Redis is as kombu's own
transport leaves it.
"""

import logging
from bisect import bisect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import redis
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps

from inference import clock
from inference.broker import address
from inference.broker.kombu_json import loads
from inference.broker.kombu_redis import connections
from inference.broker.kombu_redis.bindings import Bindings
from inference.broker.kombu_redis.broadcasts import Broadcasts
from inference.broker.kombu_redis.fetches import LONGEST_BYTES, Fetches, parse_messages
from inference.broker.kombu_redis.qos import QoS, Unacked
from inference.broker.kombu_redis.scripts import FETCH
from inference.values.priority import PATIENT

logger = logging.getLogger(__name__)

Taker = tuple[Callable[[Any], None], bool]  # the callback of a consumer, and True if it acknowledges nothing


class Channel(virtual.Channel):
    QoS = QoS
    supports_fanout = True

    # The options of kombu's Redis transport that have a meaning here, with its values where they are not set.
    unacked_key, unacked_index_key, unacked_mutex_key = "unacked", "unacked_index", "unacked_mutex"
    keyprefix_binding_deadlines = "_kombu.binding_deadlines"
    visibility_timeout = 3600  # s
    priority_steps: Sequence[int] = (0, 3, 6, 9)
    socket_timeout = socket_connect_timeout = socket_keepalive = None
    health_check_interval = 25  # s
    from_transport_options = (
        *virtual.Channel.from_transport_options,
        *("unacked_key", "unacked_index_key", "unacked_mutex_key", "keyprefix_binding_deadlines"),
        *("visibility_timeout", "priority_steps"),
        *connections.OPTIONS,
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server: str = self.connection.client.as_uri()
        self.client = connections.make_client(
            self.connection.client, {name: getattr(self, name) for name in connections.OPTIONS}
        )
        self.fetches = Fetches(self, self._hand_over)
        self.bindings = Bindings(self.client, self.keyprefix_binding_deadlines)
        self.broadcasts = Broadcasts(self.client, self._hand_over_broadcast)
        self._takers: dict[str, Taker] = {}  # by queue
        self._queue_by_tag: dict[str, str] = {}  # by consumer tag
        self._expiries_ms: dict[str, int] = {}  # by queue
        self._auto_deleted: set[str] = set()  # queues
        try:
            self.client.ping()
        except BaseException:
            self.client.connection_pool.disconnect()
            raise

    @property
    def is_driven(self) -> bool:
        """True if a next fetch will come, or if the channel is closed and has put its messages back."""
        return self.connection is None or self.connection.is_driven

    def make_list_key(self, queue: str, raw: Any) -> str:
        """Return the key of the list of a queue in which a message belongs by its priority."""
        try:
            priority = max(self.min_priority, min(int(raw["properties"]["priority"]), self.max_priority))
        except (LookupError, TypeError, ValueError):
            priority = self.default_priority
        return address.make_queue_key(queue, self.priority_steps[bisect(self.priority_steps, priority) - 1])

    def find_bound_queues(self, exchange: str, routing_key: str) -> Collection[str]:
        """Return the queues that get messages to this exchange with this routing key."""
        if not exchange:
            return [routing_key]
        return list(self.typeof(exchange).lookup(self.get_table(exchange), exchange, routing_key, None))

    # Methods that kombu documents for virtual channels to implement

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        key, text = self.make_list_key(queue, message), dumps(message)
        if queue not in self._expiries_ms:
            self.client.lpush(key, text)
            return
        with self.client.pipeline() as pipe:
            pipe.lpush(key, text)
            for name in self._list_keys(queue):
                pipe.pexpire(name, self._expiries_ms[queue])
            pipe.execute()

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        self.client.publish(self._make_topic(exchange, routing_key), dumps(message))

    def _size(self, queue: str) -> int:
        with self.client.pipeline() as pipe:
            for key in self._list_keys(queue):
                pipe.llen(key)
            return sum(pipe.execute())

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return bool(self.client.exists(*self._list_keys(queue)))

    def _purge(self, queue: str) -> int:
        with self.client.pipeline() as pipe:
            for key in self._list_keys(queue):
                pipe.llen(key)
            pipe.delete(*self._list_keys(queue))
            return sum(pipe.execute()[:-1])

    def _delete(self, queue: str, exchange: str, routing_key: str, pattern: str, *args: Any, **kwargs: Any) -> None:
        self._auto_deleted.discard(queue)
        self.bindings.remove(exchange, (routing_key, pattern, queue))
        self.client.delete(*self._list_keys(queue))

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        if kwargs.get("auto_delete"):
            self._auto_deleted.add(queue)
        expiry_ms = (kwargs.get("arguments") or {}).get("x-expires")
        if expiry_ms is None:
            self._expiries_ms.pop(queue, None)
        else:
            self._expiries_ms[queue] = int(expiry_ms)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        if queue in self._expiries_ms:
            self.bindings.renew_binding(exchange, (routing_key, pattern, queue), self._expiries_ms[queue])
        else:
            self.bindings.add(exchange, (routing_key, pattern, queue))

    def get_table(self, exchange: str) -> list[tuple[str, ...]]:
        return self.bindings.read(exchange)

    def prepare_queue_arguments(self, arguments: dict[str, Any], **kwargs: Any) -> Any:
        return to_rabbitmq_queue_arguments(arguments, **kwargs)

    # Methods that a consumer calls

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], None], consumer_tag: str, **kwargs: Any
    ) -> None:
        self._takers[queue] = callback, no_ack
        self._queue_by_tag[consumer_tag] = queue
        topics = self._list_topic_patterns(queue)
        for topic in topics:
            self.broadcasts.subscribe(topic, queue)
        if not topics:
            self.fetches.add_queue(queue)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Cancel a consumer; with the last queue the channel stops reading, though it may be kept for long."""
        queue = self._queue_by_tag.pop(consumer_tag, None)
        if queue is None or queue in self._queue_by_tag.values():
            return
        del self._takers[queue]
        self.broadcasts.unsubscribe(queue)
        self.fetches.remove_queue(queue)
        if not self.fetches.queues:
            self.fetches.read_last_answer()
            self.qos.put_back_or_defer(self.fetches.take_arrived_messages())

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Take one message of a queue that is not consumed; None if it has none."""
        messages: list[Any] = []
        lists = [(queue, address.make_queue_key(queue, step)) for step in self.priority_steps]
        names = [*self.qos.server_keys, *(key for _, key in lists)]
        fetched: Any = self.client.eval(FETCH, len(names), *names, clock.estimate_now_s(), 1, 1, LONGEST_BYTES)
        for _, arrived in parse_messages(fetched, lists):
            self._hand_over(queue, arrived, (messages.append, no_ack))
        return messages[0] if messages else None

    def close(self) -> None:
        if not self.closed:
            self.fetches.read_last_answer()
            self.qos.restore_unacked_once()
            self._close_connections()
        super().close()

    def _close_connections(self) -> None:
        """Delete what is of no use without this consumer, as far as the server answers, and disconnect."""
        try:
            for queue in filter(self._list_topic_patterns, list(self._auto_deleted)):
                self.queue_delete(queue)
        except (redis.RedisError, OSError) as error:
            logger.warning("the bindings of this consumer stay in the broker: %s", error)
        self.broadcasts.close()
        self.fetches.close()
        self.client.connection_pool.disconnect()

    def free_prefetch_place(self, tag: str) -> None:
        """Make room for a job: one of the jobs of this message has ended, others have not."""
        self.qos.free_prefetch_place(tag)

    # Methods that the transport calls

    def send_due_commands(self) -> None:
        """Send what is due, and have the connections watched, before the event loop waits."""
        if self.fetches.is_due():
            self.fetches.send()
        if connection := self.broadcasts.connection:
            if not connection.is_connected:
                connection.connect()
            self.connection.watch(connection, self.broadcasts.read)

    def renew_bindings(self) -> None:
        """Refresh the bindings of consumed queues that expire."""
        expiries = {queue: self._expiries_ms[queue] for queue in self._takers if queue in self._expiries_ms}
        self.bindings.renew_bindings(
            [
                (exchange, self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments), expiry_ms)
                for queue, expiry_ms in expiries.items()
                for exchange, routing_key, arguments in self.state.queue_bindings(queue)
            ]
        )

    def _list_keys(self, queue: str) -> list[str]:
        return [address.make_queue_key(queue, step) for step in self.priority_steps]

    def _make_topic(self, exchange: str, routing_key: str) -> str:
        database = self.client.get_connection_kwargs()["db"]
        return f"/{database}.{exchange}" + (f"/{routing_key}" if routing_key else "")

    def _list_topic_patterns(self, queue: str) -> list[str]:
        """Return the patterns of the topics that reach a queue as broadcasts."""
        return [
            self._make_topic(exchange, routing_key.replace("#", "*"))
            for exchange, routing_key, _ in self.state.queue_bindings(queue)
            if self.typeof(exchange).type == "fanout"
        ]

    def _hand_over(self, queue: str, arrived: Unacked, taker: Taker | None = None) -> None:
        """Hand a message to its consumer, or put it back if the queue is not consumed any more.

        A message at which the consumer raises an error is dropped: it would end this worker, and then the next one.
        """
        taker = taker or self._takers.get(queue)
        if taker is None:
            self.qos.put_back_or_defer([arrived])
            return
        tag, key, text = arrived
        try:
            raw = _check_message(loads(text))
            message = self.Message(raw, channel=self)
        except Exception as error:
            logger.error("not a message, dropped from %s: %r: %.200r", queue, error, text)
            self.qos.acknowledge_or_defer(tag)
            return
        callback, no_ack = taker
        if no_ack:
            self.qos.acknowledge_or_defer(tag)
        else:
            patient = (address.make_queue_key(queue, step) for step in self.priority_steps if step >= PATIENT)
            self.qos.keep_message(raw, tag, key, is_patient=key in patient)
        try:
            callback(message)
        except redis.RedisError:
            raise
        except Exception:
            logger.exception("message dropped from %s, its consumer failed: %.200r", queue, message.headers)
            self.qos.ack(tag)

    def _hand_over_broadcast(self, queue: str, raw: object) -> None:
        callback, _ = self._takers[queue]
        callback(self.Message(raw, channel=self))


def _check_message(raw: Any) -> Any:
    """Return the message if it has what Celery relies on without a check; else raise an error."""
    headers = raw["headers"]
    if not isinstance(raw["body"], str) or not isinstance(headers, dict):
        raise TypeError("body must be a string and headers an object")
    if not isinstance(headers.get("jobs", 1), int):
        raise TypeError("headers.jobs must be a number")
    if "task" in headers and not (isinstance(headers["task"], str) and isinstance(headers.get("id"), str)):
        raise TypeError("headers.task and headers.id must be strings")
    return raw
