"""What a channel has handed over and the consumer has not acknowledged yet."""

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
    """A message that may be put back, and where it came from."""

    tag: str
    key: str
    text: str | bytes


class Unsettled(NamedTuple):
    """What the server is to be told once a channel is over."""

    acked: list[str]
    messages: list[Unacked]
    tags: list[str]  # of messages whose text and place only the server knows
    lost_fetch: float | None  # the time of a fetch whose answer did not arrive


class QoS(stock.QoS):
    """Acknowledges with the channel's next fetch; puts back in the original order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.patient = 0  # jobs of the lowest priority that may be held beside the prefetch count
        self._low: set[str] = set()  # tags of that priority
        self._low_jobs = 0
        self.acked: list[str] = []  # to tell the server
        self.sending: list[str] = []  # on their way to it
        self.lost_fetch: float | None = None
        self._keys: dict[str, str] = {}  # by tag, the list that a message came from
        self._jobs: dict[str, int] = {}  # by tag, that have not ended, where a message has several
        self._is_over = False

    def keep(self, message: Any, tag: str, key: str, *, is_low: bool) -> None:
        """Like `append`, for what the fetch has recorded already."""
        self._drop(tag)  # that of a message which was held for too long, and has come again
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
        """One job of this message has ended."""
        if self._jobs.get(tag, 1) > 1:
            self._jobs[tag] -= 1
            self._low_jobs -= tag in self._low

    def can_consume(self) -> bool:
        """The prefetch count is one of jobs."""
        return self.can_consume_max_estimate() != 0

    def can_consume_max_estimate(self) -> int | None:
        """Of all but the lowest priority: they have the count for themselves, however much is held of that."""
        return self._credit(self._held - self._low_jobs)

    def can_consume_low(self) -> int | None:
        """Of the lowest priority too."""
        return self._credit(self._held)

    def can_consume_patient(self) -> int | None:
        """Of the lowest priority, where nobody waits longer for it."""
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
        """The messages by tag, and the tags by time, under the names that kombu gives them."""
        return self.prefixed(self.unacked_key), self.prefixed(self.unacked_index_key)

    def put_back(self, messages: Sequence[Unacked]) -> None:
        """To the front of their lists, in this order. What is not recorded as unacknowledged any more is left alone."""
        if not messages:
            return
        lists = list(dict.fromkeys(message.key for message in messages))
        arguments = [
            part for message in reversed(messages) for part in (message.tag, lists.index(message.key), message.text)
        ]
        names = [*self.server_keys, *map(self.prefixed, lists)]
        self._client().eval(PUT_BACK, len(names), *names, *arguments)

    def put_back_soon(self, messages: Sequence[Unacked]) -> None:
        """Put them back now, or once the server answers again: they are not this channel's any more. It is not asked
        while something waits for its answer. Raises what it refuses."""
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
        """A server that is full, or may not write, is no reason to stop consuming: that empties it."""
        try:
            super().restore_visible(*args, **kwargs)
        except redis.ResponseError as error:
            logger.warning("messages of lost workers not looked for: %s", error)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """At the end of the channel or of the process."""
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
        """What earlier channels to this server could not tell it."""
        earlier = unsettled[self.channel.server]
        while earlier:
            self._settle(earlier[0])
            earlier.pop(0)

    def try_to_settle(self) -> None:
        """Call `settle_earlier`, and leave to a later call what the server does not take now."""
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
        """At once; usually the next fetch does it."""
        if tags:
            messages, index = self.server_keys
            with self._client().pipeline() as pipe:
                pipe.hdel(messages, *tags)
                pipe.zrem(index, *tags)
                pipe.execute()

    def _tags_of_fetch(self, moment: float) -> list[str]:
        """The tags of the messages that the fetch of this moment has taken, and that are still recorded."""
        tags = self._client().zrangebyscore(self.server_keys[1], moment, moment)
        return [tag.decode() for tag in cast("list[bytes]", tags)]

    def _client(self) -> redis.Redis:
        """Without kombu's own prefixing, which knows few commands."""
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


unsettled: dict[str, list[Unsettled]] = defaultdict(list)  # by server: channels come and go
