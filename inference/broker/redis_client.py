"""The one Redis client of this process, at REDIS_URL.

It is for notices and rates, and for messages where Redis is the broker. A call fails within about a second, and while
Redis is known to be away at once.
"""

import contextlib
import functools
from collections.abc import Iterator

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from inference.broker.circuit_breaker import CircuitBreaker
from inference.connection_retries import is_away

CONNECTIONS = 16  # for all threads of a process
TIMEOUT_S = 1.0


def make_breaker() -> CircuitBreaker:
    return CircuitBreaker(redis.RedisError, OSError, slots=CONNECTIONS - 4)  # four are left for the probes of /readyz


breaker = make_breaker()


def get_client() -> redis.Redis:
    """Return the client; its calls take a second at most, so it is not for blocking commands."""
    return _make_client(settings.REDIS_URL)


@contextlib.contextmanager
def borrow_client() -> Iterator[redis.Redis]:
    """Give the client for one call.

    Raises `BrokerUnavailable`, at once while Redis is known to be away, and `RedisError` if Redis refuses the command.
    """
    refused: redis.RedisError | None = None
    with breaker.guard_call():
        try:
            yield get_client()
        except redis.RedisError as error:
            if is_away(error):
                raise
            refused = error
    if refused:
        raise refused


@functools.lru_cache(maxsize=2)
def _make_client(url: str) -> redis.Redis:
    once_more = Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,))  # an idle connection may be closed
    return redis.Redis.from_pool(
        redis.BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=TIMEOUT_S,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=once_more,
        )
    )
