"""The messages that a channel has handed over and the consumer has not acknowledged yet."""

import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import redis
from kombu.transport import redis as stock
from kombu.transport import virtual
from kombu.utils.json import dumps

from inference.broker.kombu_redis.scripts import PUT_BACK
from inference.broker.messages import MOST_PACKED
from inference.failures import is_away

logger = logging.getLogger(__name__)


class Unacked(NamedTuple):
    """A message that may be put back, with the key of the list that it came from."""

    tag: str
    key: str
    text: str | bytes


class Unsettled(NamedTuple):
    """The acknowledgements and messages that the server is to get after the end of a channel."""

    acked: list[str]
    messages: list[Unacked]
    tags: list[str]  # of messages whose text and list only the server has
    lost_fetch: float | None  # the time of a fetch whose answer did not arrive


class QoS(stock.QoS):
    """The unacknowledged messages of a channel.

    Acknowledgements are sent with the channel's next fetch. Messages are put back in their original order.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.patient = 0  # jobs of the lowest priority that may be held beside the prefetch count
        self._low: set[str] = set()  # tags of messages of that priority
        self._low_jobs = 0
        self.acked: list[str] = []  # tags of acknowledgements that are to be sent
        self.sending: list[str] = []  # tags of acknowledgements on their way to the server
        self.lost_fetch: float | None = None
        self._keys: dict[str, str] = {}  # by tag: the list that the message came from
        self._jobs: dict[str, int] = {}  # by tag of a message with several jobs: how many have not ended
        self._is_over = False

    def keep(self, message: Any, tag: str, key: str, *, is_low: bool) -> None:
        """Add a message as `append` does; the fetch has recorded it in the server already."""
        self._drop(tag)  # the tag is known if the message was held for too long, and has come again
        self._keys[tag] = key
        if (jobs := message.headers.get("jobs", 1)) > 1:
            self._jobs[tag] = min(jobs, MOST_PACKED)
        if is_low:
            self._low.add(tag)
            self._low_jobs += self._jobs.get(tag, 1)
        virtual.QoS.append(self, message, tag)

    def _drop(self, tag: str) -> None:
        self._keys.pop(tag, None)
        jobs = self._jobs.pop(tag, 1)
        if tag in self._low:
            self._low.remove(tag)
            self._low_jobs -= jobs

    def make_room(self, tag: str) -> None:
        """Count one job of this message as ended."""
        if self._jobs.get(tag, 1) > 1:
            self._jobs[tag] -= 1
            self._low_jobs -= tag in self._low

    def can_consume(self) -> bool:
        """Return True if the prefetch count, which is one of jobs, leaves room."""
        return self.can_consume_max_estimate() != 0

    def can_consume_max_estimate(self) -> int | None:
        """Return how many jobs of all but the lowest priority may be fetched; None without a limit.

        They have the prefetch count for themselves, however many jobs of the lowest priority are held.
        """
        return self._credit(self._held - self._low_jobs)

    def can_consume_low(self) -> int | None:
        """Return how many jobs of any priority, the lowest one too, may be fetched; None without a limit."""
        return self._credit(self._held)

    def can_consume_patient(self) -> int | None:
        """Return how many jobs of the lowest priority may be fetched where no other job waits longer because of them.

        The result is None without a limit.
        """
        return self._credit(self._held - self.patient)

    def _credit(self, held: int) -> int | None:
        return max(0, self.prefetch_count - held) if self.prefetch_count else None

    @property
    def _held(self) -> int:
        return len(self._delivered) - len(self._dirty) + sum(self._jobs.values()) - len(self._jobs)

    def ack(self, tag: str) -> None:
        self.forget(tag)
        virtual.QoS.ack(self, tag)

    def forget(self, tag: str) -> None:
        self._drop(tag)
        self.acked.append(tag)
        if not self.channel.is_driven:
            self._acknowledge(self.acks_to_send())
            self.acks_sent()

    def reject(self, tag: str, requeue: bool = False) -> None:
        if not requeue:
            self.ack(tag)
        elif tag in self._keys:
            self.put_back_soon([self._unacked(tag)])
            self._drop(tag)
            virtual.QoS.ack(self, tag)
        else:
            super().reject(tag, requeue)

    def acks_to_send(self) -> list[str]:
        self.sending += self.acked
        self.acked = []
        return self.sending

    def acks_sent(self) -> None:
        self.sending = []

    def prefixed(self, key: str) -> str:
        return f"{self.channel.global_keyprefix}{key}"

    @property
    def server_keys(self) -> tuple[str, str]:
        """The keys of the messages by tag and of the tags by time, with kombu's names."""
        return self.prefixed(self.unacked_key), self.prefixed(self.unacked_index_key)

    def put_back(self, messages: Sequence[Unacked]) -> None:
        """Put messages back to the front of their lists, in this order.

        Messages that are no longer recorded as unacknowledged are left alone.
        """
        if not messages:
            return
        lists = list(dict.fromkeys(message.key for message in messages))
        arguments = [
            part for message in reversed(messages) for part in (message.tag, lists.index(message.key), message.text)
        ]
        names = [*self.server_keys, *map(self.prefixed, lists)]
        self._client().eval(PUT_BACK, len(names), *names, *arguments)

    def put_back_soon(self, messages: Sequence[Unacked]) -> None:
        """Put messages back now, or once the server answers again; this channel no longer holds them.

        The server is not called while earlier messages wait for it to answer again. Raises the error if it refuses.
        """
        later = unsettled[self.channel.server]
        if not later:
            try:
                self.put_back(messages)
                return
            except Exception as error:
                if not is_away(error):
                    raise
                logger.warning("%d messages are put back when the broker answers again: %s", len(messages), error)
        later.append(Unsettled([], list(messages), [], None))

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Restore messages of lost workers as kombu does, and log it if the server refuses that.

        A server that is full, or may not write, is no reason to stop consuming: consuming empties it.
        """
        try:
            super().restore_visible(*args, **kwargs)
        except redis.ResponseError as error:
            logger.warning("messages of lost workers not looked for: %s", error)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Put back all messages at the end of the channel or of the process."""
        self._on_collect.cancel()
        self._flush()
        if self._is_over:
            return
        self._is_over = True
        messages, tags = self._take_all() if self.restore_at_shutdown else ([], [])
        self.try_to_settle()
        left = Unsettled(self.acks_to_send(), messages + self.channel.take_unread(), tags, self.lost_fetch)
        try:
            self._settle(left)
        except (redis.RedisError, OSError) as error:
            logger.warning("%d messages are put back when the broker answers again: %s", len(left.messages), error)
            unsettled[self.channel.server].append(left)

    def settle_earlier(self) -> None:
        """Send the server what earlier channels could not send it."""
        earlier = unsettled[self.channel.server]
        while earlier:
            self._settle(earlier[0])
            earlier.pop(0)

    def try_to_settle(self) -> None:
        """Call `settle_earlier`; what the server does not take now is left to a later call."""
        try:
            self.settle_earlier()
        except (redis.RedisError, OSError) as error:
            logger.warning("messages are not put back into the broker yet: %s", error)

    def note_lost_fetch(self, fetched_at: float) -> None:
        unsettled[self.channel.server].append(Unsettled([], [], [], fetched_at))

    def _settle(self, left: Unsettled) -> None:
        self._acknowledge(left.acked)
        self.put_back(left.messages)
        for tag in left.tags + (self._tags_of_fetch(left.lost_fetch) if left.lost_fetch else []):
            self.restore_by_tag(tag)
        if left.messages:
            logger.info("%d unacknowledged messages are back in their queues", len(left.messages))

    def _acknowledge(self, tags: Sequence[str]) -> None:
        """Send acknowledgements at once; usually the next fetch does it."""
        if tags:
            messages, index = self.server_keys
            with self._client().pipeline() as pipe:
                pipe.hdel(messages, *tags)
                pipe.zrem(index, *tags)
                pipe.execute()

    def _tags_of_fetch(self, moment: float) -> list[str]:
        """Return the tags of messages that the fetch of this moment has taken and that are still recorded."""
        tags = self._client().zrangebyscore(self.server_keys[1], moment, moment)
        return [tag.decode() for tag in cast("list[bytes]", tags)]

    def _client(self) -> redis.Redis:
        """Return a client without kombu's prefixing of keys, which supports few commands."""
        return redis.Redis(connection_pool=self.channel.pool)

    def _take_all(self) -> tuple[list[Unacked], list[str]]:
        messages = [self._unacked(tag) for tag in self._delivered if tag in self._keys]
        tags = [tag for tag in self._delivered if tag not in self._keys]
        self._delivered.clear()
        self._keys.clear()
        self._jobs.clear()
        self._low.clear()
        self._low_jobs = 0
        return messages, tags

    def _unacked(self, tag: str) -> Unacked:
        raw = self._delivered[tag]._raw
        raw["headers"]["redelivered"] = raw["properties"]["delivery_info"]["redelivered"] = True
        return Unacked(tag, self._keys[tag], dumps(raw))


unsettled: dict[str, list[Unsettled]] = defaultdict(list)  # by server, since it outlives the channels
