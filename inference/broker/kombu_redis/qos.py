"""The messages that a channel has handed over and the consumer has not acknowledged yet."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import redis
from kombu.utils.json import dumps, loads

from inference import clock
from inference.broker.kombu_redis.scripts import PUT_BACK
from inference.broker.messages import MOST_PACKED
from inference.connection_retries import is_away

if TYPE_CHECKING:
    from inference.broker.kombu_redis.channel import Channel

logger = logging.getLogger(__name__)

CHUNK = 256  # messages that one command puts back: a server runs one command at a time
LOOKS = 10  # calls of `restore_visible`, of which one asks the server
LOCKED_S = 300  # for which a process that puts back messages of lost workers keeps others from it


class Unacked(NamedTuple):
    """A message that may be put back, with the key of the list that it came from."""

    tag: str
    key: str
    text: str | bytes


class Held(NamedTuple):
    """A message that was handed over, and what it takes of the prefetch count."""

    raw: Any  # as it was read
    key: str
    jobs: int  # that have not ended
    is_patient: bool


class Unsettled(NamedTuple):
    """The acknowledgements and messages that the server is to get after the end of a channel."""

    acked: list[str]
    messages: list[Unacked]
    lost_fetch: float | None  # the time of a fetch whose answer did not arrive


class QoS:
    """The unacknowledged messages of a channel, with the methods of kombu's `virtual.QoS` that are called.

    Acknowledgements are sent with the channel's next fetch. Messages are put back in their original order.
    """

    restore_at_shutdown = True

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.prefetch_count = 0
        self.acked: list[str] = []  # tags of acknowledgements that are to be sent
        self.sending: list[str] = []  # tags of acknowledgements on their way to the server
        self.lost_fetch: float | None = None
        self._held: dict[str, Held] = {}  # by tag
        self._jobs = self._patient_jobs = 0  # of all that are held, of those of patient priorities
        self._looks = 0  # for messages of lost workers
        self._is_over = False
        self._pid = os.getpid()
        atexit.register(self._restore_at_exit)

    def keep_message(self, raw: dict[str, Any], tag: str, key: str, *, is_patient: bool) -> None:
        """Add a message; the fetch has recorded it in the server already."""
        self._drop(tag)  # the tag is known if the message was held for too long, and has come again
        jobs = max(1, min(raw["headers"].get("jobs", 1), MOST_PACKED))
        self._held[tag] = held = Held(raw, key, jobs, is_patient)
        self._count(held, 1)

    def _drop(self, tag: str) -> None:
        if held := self._held.pop(tag, None):
            self._count(held, -1)

    def _count(self, held: Held, sign: int) -> None:
        self._jobs += sign * held.jobs
        self._patient_jobs += sign * held.jobs * held.is_patient

    def free_prefetch_place(self, tag: str) -> None:
        """Count one job of this message as ended."""
        held = self._held.get(tag)
        if held and held.jobs > 1:
            self._count(held, -1)
            self._held[tag] = held._replace(jobs=held.jobs - 1)
            self._count(self._held[tag], 1)

    def can_consume_max_estimate(self) -> int | None:
        """Return how many jobs of all but patient priorities may be fetched; None without a limit.

        They have the prefetch count for themselves, however many jobs of patient priorities are held.
        """
        return self._compute_credit(self._jobs - self._patient_jobs)

    def compute_total_credit(self) -> int | None:
        """Return how many jobs of any priority, patient ones too, may be fetched; None without a limit."""
        return self._compute_credit(self._jobs)

    def _compute_credit(self, held: int) -> int | None:
        return max(0, self.prefetch_count - held) if self.prefetch_count else None

    def ack(self, tag: str) -> None:
        """Acknowledge a message; broadcasts, which are not held, need none."""
        if tag in self._held:
            self.acknowledge_or_defer(tag)

    def acknowledge_or_defer(self, tag: str) -> None:
        """Have the server forget a message, with the next fetch, or at once if there is no event loop to send one."""
        self._drop(tag)
        self.acked.append(tag)
        if not self.channel.is_driven:
            self._acknowledge(self.take_acks_to_send())
            self.forget_sent_acks()

    def reject(self, tag: str, requeue: bool = False) -> None:
        if requeue and tag in self._held:
            self.put_back_or_defer([self._make_unacked(tag)])
            self._drop(tag)
        else:
            self.ack(tag)

    def take_acks_to_send(self) -> list[str]:
        self.sending += self.acked
        self.acked = []
        return self.sending

    def forget_sent_acks(self) -> None:
        self.sending = []

    @property
    def server_keys(self) -> tuple[str, str]:
        """The keys of the messages by tag and of the tags by time."""
        return self.channel.unacked_key, self.channel.unacked_index_key

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
        names = [*self.server_keys, *lists]
        self._client.eval(PUT_BACK, len(names), *names, *arguments)

    def put_back_or_defer(self, messages: Sequence[Unacked]) -> None:
        """Put messages back now, or once the server answers again; this channel no longer holds them.

        The server is not called while earlier messages wait for it to answer again. Raises the error if it refuses.
        """
        later = unsettled_by_server[self.channel.server]
        if not later:
            try:
                self.put_back(messages)
                return
            except Exception as error:
                if not is_away(error):
                    raise
                logger.warning("%d messages are put back when the broker answers again: %s", len(messages), error)
        later.append(Unsettled([], list(messages), None))

    def restore_visible(self) -> None:
        """Put back messages of lost workers, at each call in `LOOKS`, and log it if the server refuses that.

        A server that is full, or may not write, is no reason to stop consuming: consuming empties it.
        """
        self._looks += 1
        if (self._looks - 1) % LOOKS:
            return
        lock = self._client.lock(self.channel.unacked_mutex_key, timeout=LOCKED_S)
        try:
            if not lock.acquire(blocking=False):
                return
            try:
                until = clock.estimate_now_s() - self.channel.visibility_timeout
                latest_first = self._client.zrange(self.server_keys[1], until, 0, desc=True, byscore=True)
                self._restore_messages(latest_first)
            finally:
                with contextlib.suppress(redis.exceptions.LockNotOwnedError):  # it took longer than the lock lasts
                    lock.release()
        except redis.ResponseError as error:
            logger.warning("messages of lost workers not looked for: %s", error)

    def _restore_messages(self, tags: Any) -> None:
        """Put back messages of which only the server has the texts; the last one becomes the first in line."""
        messages, _ = self.server_keys
        for start in range(0, len(tags), CHUNK):
            some = [tag.decode() for tag in tags[start : start + CHUNK]]
            texts = cast("list[bytes | None]", self._client.hmget(messages, some))
            found = {tag: self._route_recorded_message(tag, text) for tag, text in zip(some, texts, strict=True)}
            self.put_back([message for tag in reversed(some) for message in found[tag]])
            self._acknowledge([tag for tag in some if not found[tag]])

    def _route_recorded_message(self, tag: str, text: bytes | None) -> list[Unacked]:
        """Return a recorded message once for each list in which it belongs, which may be none."""
        if text is None:
            return []
        try:
            raw, exchange, routing_key = loads(text)
            _note_redelivery(raw)
            queues = self.channel.find_bound_queues(exchange, routing_key)
            return [Unacked(tag, self.channel.make_list_key(queue, raw), dumps(raw)) for queue in queues]
        except redis.RedisError:
            raise
        except Exception as error:
            logger.error("not a message, dropped from those that are unacknowledged: %r: %.200r", error, text)
            return []

    def restore_unacked(self) -> None:
        """Put back all messages, which the consumer asks for."""
        self.put_back_or_defer(self._take_all())

    def _restore_at_exit(self) -> None:
        if os.getpid() == self._pid:  # not in a copy of the process that holds the messages
            self.restore_unacked_once()

    def restore_unacked_once(self) -> None:
        """Put back all messages at the end of the channel or of the process."""
        atexit.unregister(self._restore_at_exit)
        if self._is_over:
            return
        self._is_over = True
        messages = self._take_all() if self.restore_at_shutdown else []
        self.try_to_settle_earlier_channels()
        unsettled = Unsettled(
            self.take_acks_to_send(), messages + self.channel.fetches.take_arrived_messages(), self.lost_fetch
        )
        try:
            self._settle_messages(unsettled)
        except (redis.RedisError, OSError) as error:
            logger.warning("%d messages are put back when the broker answers again: %s", len(unsettled.messages), error)
            unsettled_by_server[self.channel.server].append(unsettled)

    def settle_earlier_channels(self) -> None:
        """Send the server what earlier channels could not send it."""
        earlier = unsettled_by_server[self.channel.server]
        while earlier:
            self._settle_messages(earlier[0])
            earlier.pop(0)

    def try_to_settle_earlier_channels(self) -> None:
        """Call `settle_earlier_channels`; what the server does not take now is left to a later call."""
        try:
            self.settle_earlier_channels()
        except (redis.RedisError, OSError) as error:
            logger.warning("messages are not put back into the broker yet: %s", error)

    def note_unanswered_fetch(self, fetched_at: float | None) -> None:
        """Note a fetch whose answer did not arrive, if there is one. It is settled at the end of the channel."""
        self.lost_fetch = fetched_at

    def note_lost_fetch(self, fetched_at: float) -> None:
        unsettled_by_server[self.channel.server].append(Unsettled([], [], fetched_at))

    def _settle_messages(self, unsettled: Unsettled) -> None:
        self._acknowledge(unsettled.acked)
        self.put_back(unsettled.messages)
        if unsettled.lost_fetch:
            self._restore_messages(
                self._client.zrangebyscore(self.server_keys[1], unsettled.lost_fetch, unsettled.lost_fetch)
            )
        if unsettled.messages:
            logger.info("%d unacknowledged messages are back in their queues", len(unsettled.messages))

    def _acknowledge(self, tags: Sequence[str]) -> None:
        """Send acknowledgements at once; usually the next fetch does it."""
        if tags:
            messages, index = self.server_keys
            with self._client.pipeline() as pipe:
                pipe.hdel(messages, *tags)
                pipe.zrem(index, *tags)
                pipe.execute()

    @property
    def _client(self) -> redis.Redis:
        return self.channel.client

    def _take_all(self) -> list[Unacked]:
        messages = [self._make_unacked(tag) for tag in self._held]
        self._held.clear()
        self._jobs = self._patient_jobs = 0
        return messages

    def _make_unacked(self, tag: str) -> Unacked:
        raw, key, *_ = self._held[tag]
        _note_redelivery(raw)
        return Unacked(tag, key, dumps(raw))


def _note_redelivery(raw: dict[str, Any]) -> None:
    raw["headers"]["redelivered"] = raw["properties"]["delivery_info"]["redelivered"] = True


unsettled_by_server: dict[str, list[Unsettled]] = defaultdict(list)  # it outlives the channels
