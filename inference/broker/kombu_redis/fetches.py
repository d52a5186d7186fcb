"""The fetches of a channel: one step takes many messages from Redis and records them as unacknowledged.

kombu takes one message at a time with BRPOP, and loses it if the process is killed at a certain moment. A fetch is one
script call, pipelined with EXISTS on the same lists. The connection tracks keys (CLIENT TRACKING): when all lists are
empty, the server sends one notice as soon as any of them changes, whichever client publishes. Nothing is popped
meanwhile.
"""

import enum
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any

import redis

from inference import clock
from inference.broker import address
from inference.broker.kombu_redis.qos import Unacked
from inference.broker.kombu_redis.scripts import FETCH
from inference.values.priority import PATIENT

logger = logging.getLogger(__name__)

MOST = 256  # messages a fetch, so that the event loop is not held up
LONGEST_BYTES = 1024 * 1024  # of a message: this project's have about 1,300
RECHECK_S = 1.0  # a fetch is due after so long without a notice; that also shows that a connection is lost
UNKNOWN = float("-inf")  # in `_empty_since`: the lists may have messages
MISSES = 3  # fetches in a row that found nothing though a key exists: others were faster, or it is no list


class Lists(enum.IntEnum):
    """The lists that a fetch takes messages from."""

    NONE = 0
    HURRIED = 1  # all but those of patient priorities
    ALL = 2


class Fetches:
    """The connection over which a channel fetches, one fetch at a time, and the messages that have arrived.

    Each message is passed to `hand_over` with its queue.
    """

    def __init__(self, channel: Any, hand_over: Callable[[str, Unacked], None]) -> None:
        self.queues: deque[str] = deque()  # that are consumed, without those of broadcasts; they take turns
        self._channel = channel
        self._hand_over = hand_over
        self._link: Any = channel.client.connection_pool.make_connection()
        self._link.register_connect_callback(self._prepare_connection)
        self._is_requested = False
        self._requested_lists: list[tuple[str, str]] = []  # queues and lists of the fetch under way
        self._arrived: deque[tuple[str, Unacked]] = deque()  # queues and messages that are not handed over yet
        self._fetched_at: float | None = None  # when the fetch under way was sent; None without one
        self._sent_at = 0.0  # the same, monotonic
        self._credit: int | None = 0  # jobs that the last fetch might bring; None without a limit
        self._lists = Lists.ALL  # of the last fetch
        self._empty_since = UNKNOWN
        self._misses = 0
        self._fetch_sha = ""

    def add_queue(self, queue: str) -> None:
        if queue not in self.queues:
            self.queues.append(queue)
            self._empty_since = UNKNOWN  # what is known and tracked is about the other queues

    def remove_queue(self, queue: str) -> None:
        if queue in self.queues:
            self.queues.remove(queue)
            self._empty_since = UNKNOWN

    @property
    def is_fetching(self) -> bool:
        """True while the answer to a fetch is on its way."""
        return self._is_requested and bool(self._link.is_connected)

    def is_due(self) -> bool:
        """Return True if there are messages to ask the server for, or acknowledgements to send."""
        if self.is_fetching:
            return False
        if self._channel.qos.acked:
            return True
        if not self.queues or not (lists := self._find_room()[1]):
            return False
        return lists > self._lists or monotonic() - self._empty_since >= RECHECK_S

    def drop_overdue_connection(self) -> None:
        """Drop a connection whose answer is overdue; the next turn makes another one."""
        limit_s = self._channel.health_check_interval  # 0 is none
        if limit_s and self.is_fetching and monotonic() - self._sent_at > limit_s:
            logger.warning("no answer to a fetch, whose connection is made anew")
            self._link.disconnect()

    def take_arrived_messages(self) -> list[Unacked]:
        """Return the messages that were fetched and not handed over, and forget them."""
        unread = [message for _, message in self._arrived]
        self._arrived.clear()
        return unread

    def read_last_answer(self) -> None:
        """Read the answer that is under way, before the channel stops reading."""
        try:
            if self.is_fetching:
                self._read_answer()
        except (redis.RedisError, OSError) as error:
            logger.warning("the last fetch is looked for when the broker answers again: %s", error)
        self._is_requested = False
        self._channel.qos.note_unanswered_fetch(self._fetched_at)

    def close(self) -> None:
        self._link.disconnect()

    def _find_room(self) -> tuple[int | None, Lists]:
        """Return for how many jobs there is room (None: for any number), and the lists to fetch from."""
        qos = self._channel.qos
        if (room := qos.compute_total_credit()) != 0:
            return room, Lists.ALL
        hurried = qos.can_consume_max_estimate() or 0
        return hurried, Lists.HURRIED if hurried else Lists.NONE

    def _list_keys(self, queues: Sequence[str], lists: Lists) -> Iterator[tuple[str, str]]:
        """Yield each queue with the key of its list, the highest priority first."""
        steps = [step for step in self._channel.priority_steps if lists is Lists.ALL or step < PATIENT]
        yield from ((queue, address.make_queue_key(queue, step)) for step in steps for queue in queues)

    def _prepare_connection(self, connection: Any) -> None:
        """Prepare a new connection: track keys, load the script, and settle what earlier ones could not.

        It waits for the answers, as connecting does.
        """
        try:
            connection.set_invalidation_handler(self._handle_invalidation)
            # NOLOOP: no notices of changes by this connection, else each fetch would wake up the channel.
            connection.send_command("CLIENT", "TRACKING", "ON", "NOLOOP")
            connection.read_response()
            connection.send_command("SCRIPT", "LOAD", FETCH)
            self._fetch_sha = connection.read_response()
            self._empty_since = UNKNOWN
            if self._fetched_at is not None:
                self._channel.qos.note_lost_fetch(self._fetched_at)
                self._fetched_at = None
            self._channel.qos.settle_earlier_channels()
        except BaseException:
            connection.disconnect()
            raise

    def _handle_invalidation(self, notice: Any) -> None:
        self._empty_since = UNKNOWN

    def send(self) -> None:
        """Send a fetch; `_read_and_hand_over` is called when the answer is there."""
        if not self._link.is_connected:
            self._is_requested = False
            self._link.connect()
        self._channel.connection.watch(self._link, self._read_and_hand_over)
        self._credit, self._lists = self._find_room() if self.queues else (0, Lists.ALL)
        queues = list(self.queues) if self._credit != 0 else []
        self._requested_lists = list(self._list_keys(queues, self._lists))
        self.queues.rotate(-1)
        self._fetched_at = clock.estimate_now_s()
        commands = self._link.pack_commands(self._make_fetch_commands(len(queues)))
        self._link.send_packed_command(commands, check_health=False)
        self._is_requested, self._sent_at = True, monotonic()

    def _make_fetch_commands(self, queues: int) -> list[tuple[Any, ...]]:
        qos = self._channel.qos
        most = MOST if self._credit is None else min(self._credit, MOST)
        names = [key for _, key in self._requested_lists]
        keys = (*qos.server_keys, *names)
        limits = (self._fetched_at, most if queues else 0, queues or 1, LONGEST_BYTES)
        fetch = ("EVALSHA", self._fetch_sha, len(keys), *keys, *limits, *qos.take_acks_to_send())
        return [fetch, ("EXISTS", *names)] if names else [fetch]

    def _read_and_hand_over(self) -> bool:
        """Read an answer, or a notice, and hand over the messages; return True if there were any."""
        self._read_answer()
        has_arrived = bool(self._arrived)
        while self._arrived:
            queue, arrived = self._arrived.popleft()
            self._hand_over(queue, arrived)
        return has_arrived

    def _read_answer(self) -> None:
        link = self._link
        try:
            if self.is_fetching:
                fetched = link.read_response()
                existing = link.read_response() if self._requested_lists else 0
                self._is_requested = False
                self._note_answer(fetched, existing)
            else:
                link.read_response(push_request=True)
            while link.can_read(timeout=0):
                link.read_response(push_request=True)
        except (redis.RedisError, OSError):
            link.disconnect()
            raise

    def _note_answer(self, fetched: list[Any], existing: int) -> None:
        self._channel.qos.forget_sent_acks()
        self._fetched_at = None
        self._arrived.extend(parse_messages(fetched, self._requested_lists))
        self._misses = 0 if fetched else self._misses + 1
        if self._requested_lists:
            self._empty_since = monotonic() if not existing or self._misses >= MISSES else UNKNOWN


def parse_messages(fetched: Sequence[Any], lists: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Unacked]]:
    """Yield the queue and the message of each item that was fetched from these lists; log what is no message."""
    for number, tag, text in zip(*[iter(fetched)] * 3, strict=True):
        queue, key = lists[number]
        if tag:
            yield queue, Unacked(tag.decode(), key, text)
        else:
            logger.error("not a message, dropped from %s: %.200r", queue, text)
