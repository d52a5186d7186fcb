"""Of the streams of a job whose clients want it cancelled when they go, the last decides: a client that has come back,
perhaps to another web process, is not to lose its job when its old connection is found to be closed."""

from __future__ import annotations

import logging
from uuid import UUID, uuid4

import redis

from inference.broker import redis_client
from inference.errors import BrokerUnavailable
from inference.streams import history

logger = logging.getLogger(__name__)


class Reader:
    """One stream."""

    def __init__(self, job_id: UUID) -> None:
        self.key, self.name = history.key_of(job_id) + b".reader", uuid4().hex.encode()

    def come(self, *, stays_s: float) -> None:
        """At its beginning. `stays_s`: at most."""
        try:
            with redis_client.call() as client:
                client.set(self.key, self.name, ex=int(stays_s) + 1)
        except (BrokerUnavailable, redis.RedisError) as error:
            logger.warning("it is not known which stream of a job is the last: %s", error)

    def is_last(self) -> bool:
        """Also where Redis does not say."""
        try:
            with redis_client.call() as client:
                return client.get(self.key) in (None, self.name)
        except (BrokerUnavailable, redis.RedisError):
            return True
