"""The streams that are open in this process.

One thread receives the messages that say that there is more text, reads it for all of them at once, and hands it to
their readers. It never waits for a reader.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from uuid import UUID

import redis
from django.conf import settings

from inference.connection_retries import Backoff
from inference.errors import BrokerUnavailable
from inference.store.job_rows import Changes
from inference.streams import redis_streams
from inference.streams.redis_streams import FIRST, Entry
from inference.web_process.finish_listener import Listener, Waiter

logger = logging.getLogger(__name__)

POLL_S = 5.0  # between two reads of all jobs, which find text whose message was lost
LINGER_S = 30.0  # from the end of the last stream to the end of the thread
PAGE = 500  # entries that are read at once
MOST_HELD = 100  # entries that wait for one reader; with more of them the reader falls behind and reads by itself
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0  # while Redis is away


class StreamSubscriber(Waiter):
    """The queue of entries that one reader takes next.

    It begins behind. While it is behind, its reader reads the entries from Redis by itself.
    """

    def __init__(self, job_id: UUID) -> None:
        super().__init__()
        self.job_id = job_id
        self.changes: Changes | None = None  # values of the row, once the job has finished
        self.is_stopped = False  # this process ends its streams
        self.is_behind = True
        self.offered = FIRST  # the id of the last entry that the thread handed over
        self._taken = FIRST  # the id of the last entry that the reader took
        self._held: deque[Entry] = deque()
        self._changed = threading.Condition()
        self._backoff = Backoff(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)

    @property
    def is_over(self) -> bool:
        return self.is_stopped or self.changes is not None

    def wait_for_entries(self, timeout_s: float) -> list[Entry]:
        """Return the next entries as soon as there are any.

        The list is empty after `timeout_s`, and when the job has finished or the process ends its streams.
        """
        give_up_at = time.monotonic() + timeout_s
        while not self.is_over and (left_s := give_up_at - time.monotonic()) > 0:
            if entries := self._read_missed_entries(left_s) if self.is_behind else self._take_held_entries(left_s):
                self._taken = entries[-1][0]
                return entries
        return []

    def replay_after(self, to: bytes) -> None:
        """Make `wait_for_entries` return the entries after this one again."""
        with self._changed:
            self._taken = to
            self._fall_behind()

    def _read_missed_entries(self, left_s: float) -> list[Entry]:
        with self._changed:  # before the read: entries that come too late for this page are handed over by the thread
            self.is_behind, self.offered = False, self._taken
        try:
            entries = redis_streams.read_entries({self.job_id: self._taken}, PAGE).get(self.job_id, [])
        except (BrokerUnavailable, redis.RedisError):  # the thread of the streams logs the reason
            with self._changed:
                self._fall_behind()
                self._changed.wait_for(lambda: self.is_over, min(left_s, self._backoff.take_next_pause_s()))
            return []
        self._backoff.reset()
        if len(entries) == PAGE:
            with self._changed:
                self._fall_behind()
        return entries

    def _take_held_entries(self, left_s: float) -> list[Entry]:
        with self._changed:
            self._changed.wait_for(lambda: self._held or self.is_behind or self.is_over, left_s)
            held, self._held = self._held, deque()
        taken = redis_streams.parse_entry_id(self._taken)
        return [entry for entry in held if redis_streams.parse_entry_id(entry[0]) > taken]

    def _fall_behind(self) -> None:
        self.is_behind = True
        self._held.clear()

    def push_entries(self, entries: Sequence[Entry]) -> None:
        with self._changed:
            if self.is_behind:
                return
            if len(self._held) + len(entries) > MOST_HELD:
                self._fall_behind()
            else:
                self._held.extend(entries)
                self.offered = entries[-1][0]
            self._changed.notify()

    def wake(self, changes: Changes) -> None:
        with self._changed:
            self.changes = changes
            self._changed.notify()

    def end_stream(self) -> None:
        with self._changed:
            self.is_stopped = True
            self._changed.notify()


class StreamHub:
    """The open streams of this process, and the thread that reads for them.

    The thread starts with the first stream, and no error ends it. It lingers for `LINGER_S` when there is no stream.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        # By the id of the job, in the form in which messages name it
        self.subscribers: dict[bytes, list[StreamSubscriber]] = {}
        self.is_stopping = False
        self._thread: threading.Thread | None = None
        self._left_at = 0.0

    @contextlib.contextmanager
    def subscribe_to(self, job_id: UUID) -> Iterator[StreamSubscriber]:
        """Yield a new subscriber to this job, which is also woken when the job has finished."""
        subscriber, key = StreamSubscriber(job_id), redis_streams.make_text_hint([job_id])
        with self._lock:
            subscriber.is_stopped = self.is_stopping
            self._ensure_thread()
            self.subscribers.setdefault(key, []).append(subscriber)
        try:
            with self._listener.expect_finish(job_id, subscriber):
                yield subscriber
        finally:
            with self._lock:
                self.subscribers[key].remove(subscriber)
                if not self.subscribers[key]:
                    del self.subscribers[key]
                self._left_at = time.monotonic()

    def __len__(self) -> int:
        """Return the number of streams that are open now."""
        return sum(map(len, list(self.subscribers.values())))

    def end_streams(self) -> None:
        """End all streams as this process ends. Their clients go on in another process."""
        with self._lock:
            self.is_stopping = True
            for subscribers in self.subscribers.values():
                for subscriber in subscribers:
                    subscriber.end_stream()

    def _ensure_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._listen_forever, name="streams", daemon=True)
            self._thread.start()

    def _listen_forever(self) -> None:
        backoff = Backoff(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        while not self._may_end_thread():
            try:
                self._listen(backoff)
            except (redis.RedisError, BrokerUnavailable) as error:
                logger.warning("streams are silent, Redis cannot be read: %s", error)
                time.sleep(backoff.take_next_pause_s())
            except Exception:
                logger.exception("streams failed, starting again")
                time.sleep(backoff.take_next_pause_s())

    def _may_end_thread(self) -> bool:
        """Return True if the thread may end.

        The lock is held meanwhile, so that a stream that begins next finds no thread and starts one.
        """
        with self._lock:
            done = not self.subscribers and time.monotonic() - self._left_at > LINGER_S
            if done:
                self._thread = None
        return done

    def _listen(self, backoff: Backoff) -> None:
        client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=10.0, socket_connect_timeout=1.0)
        with client, client.pubsub(ignore_subscribe_messages=True) as subscription:
            subscription.subscribe(redis_streams.make_hint_channel_name())
            polled_at = 0.0
            while self.subscribers or time.monotonic() - self._left_at <= LINGER_S:
                message = subscription.get_message(timeout=POLL_S)
                if message:
                    self._hand_out_entries(message["data"].split(b","))
                if time.monotonic() - polled_at > POLL_S:
                    self._hand_out_entries(list(self.subscribers))
                    polled_at = time.monotonic()
                backoff.reset()

    def _hand_out_entries(self, keys: Collection[bytes]) -> None:
        with self._lock:
            following = [list(self.subscribers[key]) for key in keys if key in self.subscribers]
        wanted: dict[UUID, list[StreamSubscriber]] = {}
        for subscribers in following:
            if current := [subscriber for subscriber in subscribers if not subscriber.is_behind]:
                wanted[current[0].job_id] = current
        if not wanted:
            return
        after = {
            job_id: min((subscriber.offered for subscriber in subscribers), key=redis_streams.parse_entry_id)
            for job_id, subscribers in wanted.items()
        }
        for job_id, entries in redis_streams.read_entries(after, PAGE).items():
            for subscriber in wanted[job_id]:
                subscriber.push_entries(entries)
