"""A channel that consumes in bulk: one step takes many messages from Redis and records them as unacknowledged.

kombu takes one message at a time with BRPOP, and loses it if the process is killed at a certain moment. This channel
uses one script call, pipelined with EXISTS on the same lists. The connection tracks keys (CLIENT TRACKING): when all
lists are empty, the server sends one notice as soon as any of them changes, whichever client publishes. Nothing is
popped meanwhile.
"""

import enum
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from queue import Empty
from time import monotonic
from typing import Any

import redis
from kombu.transport import redis as stock

from inference import clock
from inference.broker.json_types import loads
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


class Channel(stock.Channel):
    QoS = QoS
    from_transport_options = (*stock.Channel.from_transport_options, "keyprefix_binding_deadlines")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._takers: dict[str, tuple[Callable[[Any], None], bool]] = {}  # by queue: callback, no_ack
        self._requested_lists: list[tuple[str, str]] = []  # queues and lists of the fetch under way
        self._arrived: deque[tuple[str, Unacked]] = deque()  # queues and messages that are not handed over yet
        self._fetched_at: float | None = None  # when the fetch under way was sent; None without one
        self._patient: frozenset[str] = frozenset()  # queues of whose lowest priority more jobs may be held
        self._credit: int | None = 0  # jobs that the last fetch might bring; None without a limit
        self._kinds = ListKinds.ALL  # of the lists in the last fetch
        self._empty_since = UNKNOWN
        self._misses = 0
        self._session: Any = None  # the socket that tracks keys
        self._fetch_sha = ""
        super().__init__(*args, **kwargs)
        self.server: str = self.connection.client.as_uri()

    @property
    def is_driven(self) -> bool:
        """True if a next fetch will come, or if the channel is closed and has put its messages back."""
        return self.connection is None or self.connection.is_driven

    def is_due(self) -> bool:
        """Return True if there are messages to ask the server for, or acknowledgements to send."""
        if self._in_poll:
            return False
        if self.qos.acked:
            return True
        if not self.active_queues or not (kinds := self._room()[1]):
            return False
        return bool(kinds & ~self._kinds) or monotonic() - self._empty_since >= RECHECK_S

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], None], *args: Any, **kwargs: Any
    ) -> Any:
        self._takers[queue] = callback, no_ack
        return super().basic_consume(queue, no_ack, callback, *args, **kwargs)

    def _basic_cancel(self, consumer_tag: str) -> None:
        """Cancel a consumer; with the last queue the channel stops reading, though it may be kept for long."""
        super()._basic_cancel(consumer_tag)
        if not self.active_queues:
            self._settle()
            self.qos.put_back_soon(self.take_unread())

    def close(self) -> None:
        if not self.closed:
            self._settle()
            self.qos.restore_unacked_once()
        super().close()

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
            yield from ((queue, self._q_for_pri(queue, step)) for step in hurried for queue in queues)
        if kinds & ListKinds.PATIENT:
            low = queues if kinds & ListKinds.OTHERS else [queue for queue in queues if queue in self._patient]
            yield from ((queue, self._q_for_pri(queue, lowest)) for queue in low)

    def _update_queue_cycle(self) -> None:
        """Update the cycle after a change of the queues: what is known and tracked is about the old ones."""
        super()._update_queue_cycle()
        self._empty_since = UNKNOWN

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        """Return the parameters of a connection, with protocol 3: only that one has the server's notices."""
        return {**super()._connparams(asynchronous), "protocol": 3}

    def _on_connection_disconnect(self, connection: Any) -> None:
        self._empty_since = UNKNOWN
        super()._on_connection_disconnect(connection)

    def _ensure_session(self, connection: Any) -> None:
        """Prepare a new connection: track keys, load the script, and settle what earlier ones could not.

        It waits for the answers, as connecting does.
        """
        if self._session is connection._sock:
            return
        connection._parser.set_invalidation_push_handler(self._on_invalidation)
        # NOLOOP: no notices of changes by this connection, else each fetch would wake up the channel.
        connection.send_command("CLIENT", "TRACKING", "ON", "NOLOOP")
        connection.read_response()
        connection.send_command("SCRIPT", "LOAD", FETCH)
        self._fetch_sha = connection.read_response()
        self._session, self._empty_since = connection._sock, UNKNOWN
        if self._fetched_at is not None:
            self.qos.note_lost_fetch(self._fetched_at)
        self.qos.settle_earlier()

    def _on_invalidation(self, notice: Any) -> None:
        self._empty_since = UNKNOWN

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Send a fetch; the event loop calls back when the answer is there.

        The name is kombu's.
        """
        connection = self.client.connection
        self._ensure_session(connection)
        self._credit, self._kinds = self._room() if self.active_queues else (0, ListKinds.ALL)
        queues = self._queue_cycle.consume(len(self.active_queues)) if self._credit != 0 else []
        self._requested_lists = list(self._lists(queues, self._kinds))
        if queues:
            self._queue_cycle.rotate(queues[0])
        self._fetched_at = clock.time_s()
        connection.send_packed_command(connection.pack_commands(self._commands(len(queues))), check_health=False)
        self._in_poll, self._brpop_sent_at = connection, monotonic()

    def _commands(self, queues: int) -> list[tuple[Any, ...]]:
        qos = self.qos
        most = MOST if self._credit is None else min(self._credit, MOST)
        names = [qos.prefixed(key) for _, key in self._requested_lists]
        keys = (*qos.server_keys, *names)
        limits = (self._fetched_at, most if queues else 0, queues or 1, LONGEST_BYTES)
        fetch = ("EVALSHA", self._fetch_sha, len(keys), *keys, *limits, *qos.acks_to_send())
        return [fetch, ("EXISTS", *names)] if names else [fetch]

    def _brpop_read(self, **options: Any) -> bool:
        """Read the answer and hand over its messages; raise `Empty` if it has none, or if it was only a notice."""
        self._read_answer()
        found = bool(self._arrived)
        while self._arrived:
            self._hand_over(*self._arrived.popleft())
        if not found:
            raise Empty
        return True

    def _read_answer(self) -> None:
        connection = self.client.connection
        try:
            if self._in_poll:
                fetched = connection.read_response()
                existing = connection.read_response() if self._requested_lists else 0
                self._in_poll = None
                self._note(fetched, existing)
            else:
                connection.read_response(push_request=True)
            while connection.can_read(timeout=0):
                connection.read_response(push_request=True)
        except (redis.RedisError, OSError):
            connection.disconnect()
            raise
        self._flush_brpop_reauth()

    def _note(self, fetched: list[Any], existing: int) -> None:
        self.qos.acks_sent()
        self._fetched_at = None
        for number, tag, text in zip(*[iter(fetched)] * 3, strict=True):
            queue, key = self._requested_lists[number]
            if tag:
                self._arrived.append((queue, Unacked(tag.decode(), key, text)))
            else:
                logger.error("not a message, dropped from %s: %.200r", queue, text)
        self._misses = 0 if fetched else self._misses + 1
        if self._requested_lists:
            self._empty_since = monotonic() if not existing or self._misses >= MISSES else UNKNOWN

    def _hand_over(self, queue: str, arrived: Unacked) -> None:
        """Hand a message to its consumer.

        A message at which the consumer raises an error is dropped: it would end this worker, and then the next one.
        """
        if queue not in self._active_queues:
            self.qos.put_back_soon([arrived])
            return
        tag, key, text = arrived
        try:
            message = self.Message(_checked(loads(text)), channel=self)
        except Exception as error:
            logger.error("not a message, dropped from %s: %r: %.200r", queue, error, text)
            self.qos.forget(tag)
            return
        callback, no_ack = self._takers[queue]
        if no_ack:
            self.qos.forget(tag)
        else:
            self.qos.keep(message, tag, key, is_low=key == self._q_for_pri(queue, self.priority_steps[-1]))
        try:
            callback(message)
        except redis.RedisError:
            raise
        except Exception:
            logger.exception("message dropped from %s, its consumer failed: %.200r", queue, message.headers)
            self.qos.ack(tag)

    def _deliver_fanout_message(self, message: Any, exchange: str) -> bool:
        try:
            return bool(super()._deliver_fanout_message(message, exchange))
        except redis.RedisError:
            raise
        except Exception as error:
            logger.error("not a message, dropped from %s: %r: %.200r", exchange, error, message)
            return False

    def _settle(self) -> None:
        """Read the answer that is under way, before the channel stops reading."""
        try:
            if self._in_poll:
                self._read_answer()
        except (redis.RedisError, OSError) as error:
            logger.warning("the last fetch is looked for when the broker answers again: %s", error)
        self._in_poll = None
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
