"""A channel that consumes in bulk: one step takes many messages from Redis and records them as unacknowledged.

kombu takes one message at a time with BRPOP, and loses it if the process is killed at a certain moment. This channel
uses one script call, pipelined with EXISTS on the same lists. The connection tracks keys (CLIENT TRACKING): when all
lists are empty, the server sends one notice as soon as any of them changes, whichever client publishes. Nothing is
popped meanwhile.

It extends kombu's virtual channel by the methods that kombu documents for that. What lies in Redis is as kombu's own
transport leaves it.
"""

import enum
import logging
from bisect import bisect
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from time import monotonic
from typing import Any

import redis
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps

from inference import clock
from inference.broker import address
from inference.broker.json_types import loads
from inference.broker.kombu_redis import connections
from inference.broker.kombu_redis.bindings import Bindings
from inference.broker.kombu_redis.broadcasts import Broadcasts
from inference.broker.kombu_redis.qos import QoS, Unacked
from inference.broker.kombu_redis.scripts import FETCH

logger = logging.getLogger(__name__)

MOST = 256  # messages a fetch, so that the event loop is not held up
LONGEST_BYTES = 1024 * 1024  # of a message: this project's have about 1,300
RECHECK_S = 1.0  # a fetch is due after so long without a notice; that also shows that a connection is lost
UNKNOWN = float("-inf")  # in `_empty_since`: the lists may have messages
MISSES = 3  # fetches in a row that found nothing though a key exists: others were faster, or it is no list


class ListKinds(enum.IntFlag):
    """Kinds of lists, as flags."""

    HURRIED = 1  # all but the lowest priority
    PATIENT = 2  # the lowest priority of queues whose jobs may be held beside the prefetch count
    OTHERS = 4  # the lowest priority of the other queues
    ALL = HURRIED | PATIENT | OTHERS


KINDS = {  # kinds of lists to fetch from, by whether there is room for the hurried and for the patient
    (hurried, patient): ListKinds(hurried * ListKinds.HURRIED + patient * ListKinds.PATIENT)
    for hurried in (False, True)
    for patient in (False, True)
}


class Channel(virtual.Channel):
    QoS = QoS
    supports_fanout = True

    # The options of kombu's Redis transport that have a meaning here, with its values where they are not set.
    global_keyprefix = ""
    unacked_key, unacked_index_key = "unacked", "unacked_index"
    unacked_mutex_key, unacked_mutex_expire = "unacked_mutex", 300  # s
    keyprefix_binding_deadlines = "_kombu.binding_deadlines"
    visibility_timeout = 3600  # s
    unacked_restore_limit: int | None = None
    unacked_restore_throttle = 10
    priority_steps: Sequence[int] = (0, 3, 6, 9)
    socket_timeout = socket_connect_timeout = socket_keepalive = socket_keepalive_options = client_name = None
    max_connections = 10
    health_check_interval = 25  # s
    from_transport_options = (
        *virtual.Channel.from_transport_options,
        "global_keyprefix",
        *("unacked_key", "unacked_index_key", "unacked_mutex_key", "unacked_mutex_expire"),
        "keyprefix_binding_deadlines",
        *("visibility_timeout", "unacked_restore_limit", "unacked_restore_throttle"),
        "priority_steps",
        *connections.OPTIONS,
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server: str = self.connection.client.as_uri()
        self.client = connections.make_client(
            self.connection.client, {name: getattr(self, name) for name in connections.OPTIONS}
        )
        self._link: Any = self.client.connection_pool.make_connection()  # for fetches
        self._link.register_connect_callback(self._prepare)
        self.bindings = Bindings(self.client, self.prefixed, self.keyprefix_binding_deadlines)
        self.broadcasts = Broadcasts(self.client, self._hand_over_broadcast)
        self.queues: deque[str] = deque()  # that are consumed, without those of broadcasts; they take turns
        self._takers: dict[str, tuple[Callable[[Any], None], bool]] = {}  # by queue: callback, no_ack
        self._queue_by_tag: dict[str, str] = {}  # by consumer tag
        self._expiries_ms: dict[str, int] = {}  # by queue
        self._auto_deleted: set[str] = set()  # queues
        self._is_asked = False
        self._requested_lists: list[tuple[str, str]] = []  # queues and lists of the fetch under way
        self._arrived: deque[tuple[str, Unacked]] = deque()  # queues and messages that are not handed over yet
        self._fetched_at: float | None = None  # when the fetch under way was sent; None without one
        self._sent_at = 0.0  # the same, monotonic
        self._patient: frozenset[str] = frozenset()  # queues of whose lowest priority more jobs may be held
        self._credit: int | None = 0  # jobs that the last fetch might bring; None without a limit
        self._kinds = ListKinds.ALL  # of the lists in the last fetch
        self._empty_since = UNKNOWN
        self._misses = 0
        self._fetch_sha = ""
        try:
            self.client.ping()
        except BaseException:
            self.client.connection_pool.disconnect()
            raise

    @property
    def is_driven(self) -> bool:
        """True if a next fetch will come, or if the channel is closed and has put its messages back."""
        return self.connection is None or self.connection.is_driven

    def prefixed(self, key: str) -> str:
        return f"{self.global_keyprefix}{key}"

    def key_for(self, queue: str, raw: Any) -> str:
        """Return the key of the list of a queue in which a message belongs by its priority."""
        try:
            priority = max(self.min_priority, min(int(raw["properties"]["priority"]), self.max_priority))
        except (LookupError, TypeError, ValueError):
            priority = self.default_priority
        return address.redis_key(queue, self.priority_steps[bisect(self.priority_steps, priority) - 1])

    def queues_of(self, exchange: str, routing_key: str) -> Collection[str]:
        """Return the queues that get messages to this exchange with this routing key."""
        if not exchange:
            return [routing_key]
        return list(self.typeof(exchange).lookup(self.get_table(exchange), exchange, routing_key, None))

    # Methods that kombu documents for virtual channels to implement

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        key, text = self.prefixed(self.key_for(queue, message)), dumps(message)
        if queue not in self._expiries_ms:
            self.client.lpush(key, text)
            return
        with self.client.pipeline() as pipe:
            pipe.lpush(key, text)
            for name in self._keys_of(queue):
                pipe.pexpire(name, self._expiries_ms[queue])
            pipe.execute()

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        self.client.publish(self._topic(exchange, routing_key), dumps(message))

    def _size(self, queue: str) -> int:
        with self.client.pipeline() as pipe:
            for key in self._keys_of(queue):
                pipe.llen(key)
            return sum(pipe.execute())

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return bool(self.client.exists(*self._keys_of(queue)))

    def _purge(self, queue: str) -> int:
        with self.client.pipeline() as pipe:
            for key in self._keys_of(queue):
                pipe.llen(key)
            pipe.delete(*self._keys_of(queue))
            return sum(pipe.execute()[:-1])

    def _delete(self, queue: str, exchange: str, routing_key: str, pattern: str, *args: Any, **kwargs: Any) -> None:
        self._auto_deleted.discard(queue)
        self.bindings.remove(exchange, (routing_key, pattern, queue))
        self.client.delete(*self._keys_of(queue))

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
            self.bindings.refresh(exchange, (routing_key, pattern, queue), self._expiries_ms[queue])
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
        topics = self._topics_of(queue)
        for topic in topics:
            self.broadcasts.subscribe(topic, queue)
        if not topics and queue not in self.queues:
            self.queues.append(queue)
            self._empty_since = UNKNOWN  # what is known and tracked is about the other queues

    def basic_cancel(self, consumer_tag: str) -> None:
        """Cancel a consumer; with the last queue the channel stops reading, though it may be kept for long."""
        queue = self._queue_by_tag.pop(consumer_tag, None)
        if queue is None or queue in self._queue_by_tag.values():
            return
        del self._takers[queue]
        self.broadcasts.unsubscribe(queue)
        if queue in self.queues:
            self.queues.remove(queue)
            self._empty_since = UNKNOWN
        if not self.queues:
            self._settle()
            self.qos.put_back_soon(self.take_unread())

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Take one message of a queue that is not consumed; None if it has none."""
        messages: list[Any] = []
        lists = list(self._lists([queue], ListKinds.ALL))
        names = [*self.qos.server_keys, *(self.prefixed(key) for _, key in lists)]
        fetched: Any = self.client.eval(FETCH, len(names), *names, clock.time_s(), 1, 1, LONGEST_BYTES)
        for arrived in self._parse(fetched, lists):
            self._hand_over(*arrived, (messages.append, no_ack))
        return messages[0] if messages else None

    def close(self) -> None:
        if not self.closed:
            self._settle()
            self.qos.restore_unacked_once()
            self._close_connections()
        super().close()

    def _close_connections(self) -> None:
        """Delete what is of no use without this consumer, as far as the server answers, and disconnect."""
        try:
            for queue in filter(self._topics_of, list(self._auto_deleted)):
                self.queue_delete(queue)
        except (redis.RedisError, OSError) as error:
            logger.warning("the bindings of this consumer stay in the broker: %s", error)
        self.broadcasts.close()
        self._link.disconnect()
        self.client.connection_pool.disconnect()

    def make_room(self, tag: str) -> None:
        """Make room for a job: one of the jobs of this message has ended, others have not."""
        self.qos.make_room(tag)

    def allow_patient(self, jobs: int, queues: Collection[str]) -> None:
        """Allow `jobs` of the lowest priority of these queues to be held beside the prefetch count."""
        self.qos.patient, self._patient = jobs, frozenset(queues)

    def take_unread(self) -> list[Unacked]:
        """Return the messages that were fetched and not handed over, and forget them."""
        unread = [message for _, message in self._arrived]
        self._arrived.clear()
        return unread

    # Methods that the transport calls

    def begin_turn(self) -> None:
        """Send what is due, and have the connections watched, before the event loop waits."""
        if self.is_due():
            self._send_fetch()
        if connection := self.broadcasts.connection:
            if not connection.is_connected:
                connection.connect()
            self.connection.watch(connection, self.broadcasts.read)

    @property
    def is_fetching(self) -> bool:
        """True while the answer to a fetch is on its way."""
        return self._is_asked and bool(self._link.is_connected)

    def is_due(self) -> bool:
        """Return True if there are messages to ask the server for, or acknowledgements to send."""
        if self.is_fetching:
            return False
        if self.qos.acked:
            return True
        if not self.queues or not (kinds := self._room()[1]):
            return False
        return bool(kinds & ~self._kinds) or monotonic() - self._empty_since >= RECHECK_S

    def drop_overdue_fetch(self) -> None:
        """Drop a connection whose answer is overdue; the next turn makes another one."""
        limit_s = self.health_check_interval  # 0 is none
        if limit_s and self.is_fetching and monotonic() - self._sent_at > limit_s:
            logger.warning("no answer to a fetch, whose connection is made anew")
            self._link.disconnect()

    def restore_visible(self) -> None:
        """Look for messages of lost workers, at times."""
        self.qos.restore_visible(num=self.unacked_restore_limit, interval=self.unacked_restore_throttle)

    def keep_bindings(self) -> None:
        """Keep the bindings of consumed queues that expire."""
        expiries = {queue: self._expiries_ms[queue] for queue in self._takers if queue in self._expiries_ms}
        self.bindings.keep(
            [
                (exchange, self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments), expiry_ms)
                for queue, expiry_ms in expiries.items()
                for exchange, routing_key, arguments in self.state.queue_bindings(queue)
            ]
        )

    def _keys_of(self, queue: str) -> list[str]:
        return [self.prefixed(address.redis_key(queue, step)) for step in self.priority_steps]

    def _topic(self, exchange: str, routing_key: str) -> str:
        database = self.client.get_connection_kwargs()["db"]
        return self.prefixed(f"/{database}.{exchange}" + (f"/{routing_key}" if routing_key else ""))

    def _topics_of(self, queue: str) -> list[str]:
        """Return the patterns of the topics that reach a queue as broadcasts."""
        return [
            self._topic(exchange, routing_key.replace("#", "*"))
            for exchange, routing_key, _ in self.state.queue_bindings(queue)
            if self.typeof(exchange).type == "fanout"
        ]

    def _room(self) -> tuple[int | None, ListKinds]:
        """Return for how many jobs there is room (None: for any number), and the kinds of lists to fetch from."""
        if (low := self.qos.can_consume_low()) != 0:
            return low, ListKinds.ALL
        hurried = self.qos.can_consume_max_estimate() or 0
        patient = (self.qos.can_consume_patient() or 0) if self._patient else 0
        return min(filter(None, (hurried, patient)), default=0), KINDS[bool(hurried), bool(patient)]

    def _lists(self, queues: Sequence[str], kinds: ListKinds) -> Iterator[tuple[str, str]]:
        """Yield each queue with the key of its list, the highest priority first."""
        *hurried, lowest = self.priority_steps
        if kinds & ListKinds.HURRIED:
            yield from ((queue, address.redis_key(queue, step)) for step in hurried for queue in queues)
        if kinds & ListKinds.PATIENT:
            low = queues if kinds & ListKinds.OTHERS else [queue for queue in queues if queue in self._patient]
            yield from ((queue, address.redis_key(queue, lowest)) for queue in low)

    def _prepare(self, connection: Any) -> None:
        """Prepare a new connection: track keys, load the script, and settle what earlier ones could not.

        It waits for the answers, as connecting does.
        """
        try:
            connection.set_invalidation_handler(self._on_invalidation)
            # NOLOOP: no notices of changes by this connection, else each fetch would wake up the channel.
            connection.send_command("CLIENT", "TRACKING", "ON", "NOLOOP")
            connection.read_response()
            connection.send_command("SCRIPT", "LOAD", FETCH)
            self._fetch_sha = connection.read_response()
            self._empty_since = UNKNOWN
            if self._fetched_at is not None:
                self.qos.note_lost_fetch(self._fetched_at)
                self._fetched_at = None
            self.qos.settle_earlier()
        except BaseException:
            connection.disconnect()
            raise

    def _on_invalidation(self, notice: Any) -> None:
        self._empty_since = UNKNOWN

    def _send_fetch(self) -> None:
        """Send a fetch; `_read` is called when the answer is there."""
        if not self._link.is_connected:
            self._is_asked = False
            self._link.connect()
        self.connection.watch(self._link, self._read)
        self._credit, self._kinds = self._room() if self.queues else (0, ListKinds.ALL)
        queues = list(self.queues) if self._credit != 0 else []
        self._requested_lists = list(self._lists(queues, self._kinds))
        self.queues.rotate(-1)
        self._fetched_at = clock.time_s()
        commands = self._link.pack_commands(self._commands(len(queues)))
        self._link.send_packed_command(commands, check_health=False)
        self._is_asked, self._sent_at = True, monotonic()

    def _commands(self, queues: int) -> list[tuple[Any, ...]]:
        qos = self.qos
        most = MOST if self._credit is None else min(self._credit, MOST)
        names = [self.prefixed(key) for _, key in self._requested_lists]
        keys = (*qos.server_keys, *names)
        limits = (self._fetched_at, most if queues else 0, queues or 1, LONGEST_BYTES)
        fetch = ("EVALSHA", self._fetch_sha, len(keys), *keys, *limits, *qos.acks_to_send())
        return [fetch, ("EXISTS", *names)] if names else [fetch]

    def _read(self) -> bool:
        """Read an answer, or a notice, and hand over the messages; return True if there were any."""
        self._read_answer()
        has_arrived = bool(self._arrived)
        while self._arrived:
            queue, arrived = self._arrived.popleft()
            if taker := self._takers.get(queue):
                self._hand_over(queue, arrived, taker)
            else:
                self.qos.put_back_soon([arrived])
        return has_arrived

    def _read_answer(self) -> None:
        link = self._link
        try:
            if self.is_fetching:
                fetched = link.read_response()
                existing = link.read_response() if self._requested_lists else 0
                self._is_asked = False
                self._note(fetched, existing)
            else:
                link.read_response(push_request=True)
            while link.can_read(timeout=0):
                link.read_response(push_request=True)
        except (redis.RedisError, OSError):
            link.disconnect()
            raise

    def _note(self, fetched: list[Any], existing: int) -> None:
        self.qos.acks_sent()
        self._fetched_at = None
        self._arrived.extend(self._parse(fetched, self._requested_lists))
        self._misses = 0 if fetched else self._misses + 1
        if self._requested_lists:
            self._empty_since = monotonic() if not existing or self._misses >= MISSES else UNKNOWN

    @staticmethod
    def _parse(fetched: Sequence[Any], lists: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Unacked]]:
        """Yield the queue and the message of each item that was fetched from these lists; log what is no message."""
        for number, tag, text in zip(*[iter(fetched)] * 3, strict=True):
            queue, key = lists[number]
            if tag:
                yield queue, Unacked(tag.decode(), key, text)
            else:
                logger.error("not a message, dropped from %s: %.200r", queue, text)

    def _hand_over(self, queue: str, arrived: Unacked, taker: tuple[Callable[[Any], None], bool]) -> None:
        """Hand a message to its consumer.

        A message at which the consumer raises an error is dropped: it would end this worker, and then the next one.
        """
        tag, key, text = arrived
        try:
            raw = _checked(loads(text))
            message = self.Message(raw, channel=self)
        except Exception as error:
            logger.error("not a message, dropped from %s: %r: %.200r", queue, error, text)
            self.qos.forget(tag)
            return
        callback, no_ack = taker
        if no_ack:
            self.qos.forget(tag)
        else:
            self.qos.keep(raw, tag, key, is_low=key == address.redis_key(queue, self.priority_steps[-1]))
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

    def _settle(self) -> None:
        """Read the answer that is under way, before the channel stops reading."""
        try:
            if self.is_fetching:
                self._read_answer()
        except (redis.RedisError, OSError) as error:
            logger.warning("the last fetch is looked for when the broker answers again: %s", error)
        self._is_asked = False
        self.qos.lost_fetch = self._fetched_at


def _checked(raw: Any) -> Any:
    """Return the message if it has what Celery relies on without a check; else raise an error."""
    headers = raw["headers"]
    if not isinstance(raw["body"], str) or not isinstance(headers, dict):
        raise TypeError("body must be a string and headers an object")
    if not isinstance(headers.get("jobs", 1), int):
        raise TypeError("headers.jobs must be a number")
    if "task" in headers and not (isinstance(headers["task"], str) and isinstance(headers.get("id"), str)):
        raise TypeError("headers.task and headers.id must be strings")
    return raw
