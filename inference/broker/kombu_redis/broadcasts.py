"""The fanout exchanges that a channel listens to, by Redis' PUBLISH and PSUBSCRIBE."""

import logging
from collections.abc import Callable
from typing import Any

import redis
from kombu.utils.json import loads

logger = logging.getLogger(__name__)

MOST_MISSED = 2  # health checks in a row without an answer, after which the connection is taken to be lost


class Broadcasts:
    def __init__(self, client: redis.Redis, deliver: Callable[[str, Any], None]) -> None:
        self._pubsub = client.pubsub()
        self._timeout_s: float | None = client.get_connection_kwargs().get("socket_timeout")
        self._deliver = deliver
        self._queues: dict[str, str] = {}  # by pattern of topics

    @property
    def connection(self) -> Any:
        """The `WatchedConnection` of the subscriptions; None if there are none."""
        return self._pubsub.connection if self._queues else None

    def subscribe(self, pattern: str, queue: str) -> None:
        self._pubsub.psubscribe(pattern)
        self._queues[pattern] = queue

    def unsubscribe(self, queue: str) -> None:
        patterns = [pattern for pattern, name in self._queues.items() if name == queue]
        self._queues = {pattern: name for pattern, name in self._queues.items() if name != queue}
        if not self._queues:
            self._pubsub.close()
        elif patterns:
            self._pubsub.punsubscribe(*patterns)

    def read(self) -> bool:
        """Deliver what has arrived; return True if any was a message."""
        has_arrived = False
        while (connection := self.connection) and connection.can_read(timeout=0):
            message = self._pubsub.get_message(ignore_subscribe_messages=True, timeout=self._timeout_s)
            if message and message["type"] == "pmessage" and (queue := self._queues.get(message["pattern"].decode())):
                has_arrived = True
                self._hand_over(queue, message["data"])
        return has_arrived

    def _hand_over(self, queue: str, text: bytes) -> None:
        try:
            self._deliver(queue, loads(text))
        except redis.RedisError:
            raise
        except Exception as error:
            logger.error("not a message, dropped from %s: %r: %.200r", queue, error, text)

    def check_health(self) -> None:
        """Ask for a sign of life, and drop a connection that gave none twice."""
        if not self.connection:
            return
        if self._pubsub.health_check_response_counter >= MOST_MISSED:
            logger.warning("no answer on the connection of broadcasts, which is made anew")
            self._pubsub.health_check_response_counter = 0
            self.connection.disconnect()
        else:
            self._pubsub.check_health()

    def close(self) -> None:
        self._queues.clear()
        self._pubsub.close()
