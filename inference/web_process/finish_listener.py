"""The requests that wait for their jobs to finish.

One listener thread in each process receives the notices of finished jobs. It reads the rows of those jobs that requests
of the process wait for, all in one query, and wakes these requests. A request that waits for any of many jobs gets only
their ids, and reads as many rows as its answer holds. A notice is a hint: a slow poll of the waiting ids finds the jobs
whose notices were missed. A waiting request holds no database connection.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Generic, TypeVar
from uuid import UUID

import redis
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection

from inference.connection_retries import Backoff
from inference.store import connections, job_rows, notices
from inference.store.job_rows import Changes

logger = logging.getLogger(__name__)

POLL_S = 5.0  # between two polls while the process is subscribed to notices
POLL_DEAF_S = 0.5  # between two polls while it is not
LONGEST_DEAF_S = 5.0  # between two tries to subscribe again

W = TypeVar("W", "Waiter", "FinishHints")
R = TypeVar("R")


class Waiter:
    """One request's wait for one job.

    It is a lock that is taken from the start, which costs a third of an event.
    """

    def __init__(self) -> None:
        self._changes: Changes | None = None
        self._error: Exception | None = None
        self._closed = threading.Lock()
        self._closed.acquire()

    def wait(self, timeout_s: float) -> Changes | None:
        """Return the changes of the finished job's row, or None after `timeout_s`.

        Raises the error that was passed to `fail`.
        """
        if connection.connection is not None:
            connection.close()
        if self._changes is None and self._error is None:
            self._closed.acquire(timeout=timeout_s)
        if self._error:
            raise self._error
        return self._changes

    def wake(self, changes: Changes) -> None:
        self._changes = changes
        self._end_wait()

    def fail(self, error: Exception) -> None:
        """End the wait with an error, as the job was not accepted."""
        self._error = error
        self._end_wait()

    def _end_wait(self) -> None:
        with contextlib.suppress(RuntimeError):  # already open: the writer and the listener may both end the wait
            self._closed.release()


class FinishHints:
    """One request's wait for any of many jobs, which returns the ids of those to look at."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._ids: set[UUID] = set()

    def wait(self, timeout_s: float) -> set[UUID]:
        """Return the ids of jobs that have perhaps finished. The set is empty after `timeout_s`."""
        connection.close()
        with self._arrived:
            self._arrived.wait_for(lambda: self._ids, timeout_s)
            ids, self._ids = self._ids, set()
        return ids

    def add(self, job_id: UUID) -> None:
        with self._arrived:
            self._ids.add(job_id)
            self._arrived.notify()


class Listener:
    """The listener wakes the waiters of this process.

    Its thread starts with the first wait, and no error ends it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waiters: dict[UUID, list[Waiter]] = {}
        self.hinted: dict[UUID, list[FinishHints]] = {}
        self._thread: threading.Thread | None = None

    def expect_finish(self, job_id: UUID, waiter: Waiter | None = None) -> "Registered[Waiter]":
        """Return the context within which a wait for this job is registered.

        The caller enters it before the job can finish, and then calls `wait()`, so that no notice falls in between. A
        `waiter` of a subclass may wait for more than the end of the job.
        """
        return Registered(self, self.waiters, [job_id], waiter or Waiter())

    def expect_any_finish(self, ids: Collection[UUID]) -> "Registered[FinishHints]":
        """Return the context within which a wait for any of these jobs is registered: see `expect_finish`."""
        return Registered(self, self.hinted, ids, FinishHints())

    def register_wait(self, registered: dict[UUID, list[W]], ids: Collection[UUID], waiting: W) -> None:
        with self._lock:
            self._ensure_thread()  # first: if no thread can be started, no registration is left behind
            for job_id in ids:
                registered.setdefault(job_id, []).append(waiting)

    def unregister_wait(self, registered: dict[UUID, list[W]], ids: Collection[UUID], waiting: W) -> None:
        with self._lock:
            for job_id in ids:
                registered[job_id].remove(waiting)
                if not registered[job_id]:
                    del registered[job_id]

    def __len__(self) -> int:
        """Return the number of requests that wait now, each for one job."""
        return sum(map(len, list(self.waiters.values())))

    def _ensure_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._listen_forever, name="finished-notices", daemon=True)
            self._thread.start()

    def _listen_forever(self) -> None:
        connections.bypass_connection_pool()
        backoff = Backoff(first_s=POLL_DEAF_S, longest_s=LONGEST_DEAF_S)
        while True:
            try:
                self._listen_or_poll(backoff)
            except Exception:
                logger.exception("listener failed, starting again")
                time.sleep(backoff.take_next_pause_s())

    def _listen_or_poll(self, backoff: Backoff) -> None:
        try:
            self._listen(backoff)
        except redis.RedisError as error:
            logger.warning("no finished notices, polling every %g s: %s", POLL_DEAF_S, error)
            self._poll_until(time.monotonic() + backoff.take_next_pause_s())

    def _listen(self, backoff: Backoff) -> None:
        client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=10.0, socket_connect_timeout=1.0)
        with client, client.pubsub(ignore_subscribe_messages=True) as subscription:
            subscription.subscribe(notices.get_channel_name())
            polled_at = 0.0
            while True:
                message = subscription.get_message(timeout=POLL_S)
                if message:
                    self._wake(notices.parse_ids(message["data"]))
                if time.monotonic() - polled_at > POLL_S:
                    self._wake_all()
                    polled_at = time.monotonic()
                backoff.reset()

    def _poll_until(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            self._wake_all()
            time.sleep(POLL_DEAF_S)

    def _wake_all(self) -> None:
        """Wake the requests whose jobs have finished without a notice.

        The rows are read for all requests at once, so that no request is woken in vain.
        """
        self._wake_waiters(list(self.waiters))
        self._add_hints(self._read(job_rows.find_finished, list(self.hinted)) or ())

    def _wake(self, ids: Collection[UUID]) -> None:
        self._add_hints(ids)
        self._wake_waiters([job_id for job_id in ids if job_id in self.waiters])

    def _wake_waiters(self, ids: Collection[UUID]) -> None:
        finished = self._read(job_rows.read_outcomes, ids) or {}
        with self._lock:
            for job_id, changes in finished.items():
                for waiter in self.waiters.get(job_id, ()):
                    waiter.wake(changes)

    def _read(self, read: Callable[[Collection[UUID]], R], ids: Collection[UUID]) -> R | None:
        """Return what `read` returns for these jobs. It is None for no jobs, and while the database is away."""
        if not ids:
            return None
        try:
            connections.close_stale_connection()
            return read(ids)
        except (DatabaseError, InterfaceError) as error:
            logger.warning("finished jobs not read, polling: %s", error)
            connection.close()
            return None

    def _add_hints(self, ids: Collection[UUID]) -> None:
        with self._lock:
            for job_id in ids:
                for hints in self.hinted.get(job_id, ()):
                    hints.add(job_id)


class Registered(Generic[W]):  # a class, as it costs half of what a generator costs
    """The context within which a wait for one of these jobs is registered."""

    def __init__(self, listener: Listener, registered: dict[UUID, list[W]], ids: Collection[UUID], waiting: W) -> None:
        self._listener, self._ids = listener, ids
        self._registered: dict[UUID, list[W]] = registered
        self._waiting: W = waiting

    def __enter__(self) -> W:
        self._listener.register_wait(self._registered, self._ids, self._waiting)
        return self._waiting

    def __exit__(self, *error: object) -> None:
        self._listener.unregister_wait(self._registered, self._ids, self._waiting)
