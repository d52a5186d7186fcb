"""The kombu transport `inference-redis`, on kombu's virtual transport and redis-py.

What lies in the server is as kombu's own transport for Redis leaves it, so that both work side by side.
"""

import functools
import logging
import selectors
from collections.abc import Callable
from time import monotonic
from typing import Any

import redis
from kombu import Connection
from kombu.transport import virtual

from inference.broker.kombu_redis.channel import Channel
from inference.broker.kombu_redis.connections import WatchedConnection
from inference.broker.kombu_redis.fetches import RECHECK_S

logger = logging.getLogger(__name__)

RESTORE_S = 10.0  # between looks for messages of lost workers, of which not each asks the server
HEALTH_S = 10.0  # between looks for connections that give no answer
KEEP_S = 1.0  # between looks at the bindings of queues that expire


class Transport(virtual.Transport):
    """A transport whose channels send what is due before each wait for the server's answers."""

    Channel = Channel
    driver_type = driver_name = "redis"
    default_port = 6379
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset({"direct", "topic", "fanout"})
    )
    connection_errors = (*virtual.Transport.connection_errors, OSError, redis.ConnectionError, redis.TimeoutError)
    channel_errors = (*virtual.Transport.channel_errors, redis.DataError, redis.InvalidResponse, redis.ResponseError)

    def __init__(self, client: Connection, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._loop: Any = None  # the event loop, if there is one
        self._timers: list[Any] = []
        self._readers: dict[int, Callable[[], bool]] = {}  # by file descriptor

    @property
    def is_driven(self) -> bool:
        """True with an event loop, which sends acknowledgements with its next turn."""
        return self._loop is not None

    def driver_version(self) -> str:
        return redis.__version__

    def register_with_event_loop(self, connection: virtual.Transport, loop: Any) -> None:
        self._loop = loop
        for channel in self.channels[:1]:  # they have the same server
            channel.qos.restore_visible()
        loop.on_tick.add(self.send_due_commands)
        self._timers = [
            loop.call_repeatedly(RESTORE_S, self.restore_messages),
            loop.call_repeatedly(HEALTH_S, self.check_health),
            loop.call_repeatedly(KEEP_S, self.renew_bindings),
        ]

    def close_connection(self, connection: virtual.Transport) -> None:
        for timer in self._timers:
            timer.cancel()
        if self._loop:
            self._loop.on_tick.discard(self.send_due_commands)
        super().close_connection(connection)

    def drain_events(self, connection: virtual.Transport, timeout: float | None = None) -> None:
        """Wait until a channel has read something; without an event loop.

        Raises `TimeoutError` after `timeout` seconds.
        """
        give_up_at = monotonic() + timeout if timeout is not None else float("inf")
        while not self._run_turn(min(RECHECK_S, max(0.0, give_up_at - monotonic()))):
            if monotonic() >= give_up_at:
                raise TimeoutError

    def _run_turn(self, limit_s: float) -> bool:
        """Send what is due, and read answers for which it waits `limit_s` at most; return True if there were any."""
        self.send_due_commands()
        self.renew_bindings()
        with selectors.DefaultSelector() as selector:
            for fd in self._readers:
                selector.register(fd, selectors.EVENT_READ)
            ready = [key.fd for key, _ in selector.select(limit_s)]
        if not ready:
            self.restore_messages()
            for channel in self.channels:
                channel.fetches.drop_overdue_connection()
        has_arrived = [self._readers[fd]() for fd in ready if fd in self._readers]  # one may close another
        return any(has_arrived)

    def send_due_commands(self) -> None:
        for channel in list(self.channels):
            channel.send_due_commands()

    def watch(self, connection: WatchedConnection, read: Callable[[], bool]) -> None:
        """Have `read` called, until the connection ends, whenever something has arrived on it."""
        if connection.unwatch:
            return
        fd = connection.fileno()
        connection.set_unwatch_callback(functools.partial(self._unwatch, fd))
        self._readers[fd] = read
        if self._loop:
            self._loop.add_reader(fd, read)

    def _unwatch(self, fd: int) -> None:
        del self._readers[fd]
        if self._loop:
            self._loop.remove_reader(fd)

    def restore_messages(self) -> None:
        """Send what earlier channels could not send, even if no queue is consumed, then look for lost messages."""
        for channel in list(self.channels):
            channel.qos.try_to_settle_earlier_channels()
        for channel in [channel for channel in self.channels if channel.fetches.queues][:1]:
            try:
                channel.qos.restore_visible()
            except (redis.RedisError, OSError) as error:
                logger.debug("messages of lost workers not looked for: %s", error)

    def check_health(self) -> None:
        for channel in list(self.channels):
            channel.fetches.drop_overdue_connection()
            channel.broadcasts.check_health()

    def renew_bindings(self) -> None:
        for channel in list(self.channels):
            try:
                channel.renew_bindings()
            except (redis.RedisError, OSError) as error:
                logger.warning("the bindings of queues that expire are kept later: %s", error)
