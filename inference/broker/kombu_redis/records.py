"""What the server keeps of unacknowledged messages, under the names that kombu gives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import redis

from inference.broker.kombu_redis.scripts import PUT_BACK


class Unacked(NamedTuple):
    """A message that may be put back, and where it came from."""

    tag: str
    key: str
    text: str | bytes


class Records:
    def __init__(self, channel: Any) -> None:
        self.channel = channel

    def prefixed(self, key: str) -> str:
        return f"{self.channel.global_keyprefix}{key}"

    @property
    def keys(self) -> tuple[str, str]:
        """The messages by tag, and the tags by time."""
        return self.prefixed(self.channel.unacked_key), self.prefixed(self.channel.unacked_index_key)

    def acknowledge(self, tags: Sequence[str]) -> None:
        """At once; usually the next fetch does it."""
        if not tags:
            return
        messages, index = self.keys
        with self._client().pipeline() as pipe:
            pipe.hdel(messages, *tags)
            pipe.zrem(index, *tags)
            pipe.execute()

    def put_back(self, messages: Sequence[Unacked]) -> None:
        """To the front of their lists, in this order. What is not recorded as unacknowledged any more is left alone."""
        if not messages:
            return
        lists = list(dict.fromkeys(message.key for message in messages))
        arguments = [
            part for message in reversed(messages) for part in (message.tag, lists.index(message.key), message.text)
        ]
        names = [*self.keys, *map(self.prefixed, lists)]
        self._client().eval(PUT_BACK, len(names), *names, *arguments)

    def of_fetch(self, fetched_at: float) -> list[str]:
        """The tags of the messages that the fetch of this time has taken, and that are still recorded."""
        tags = self._client().zrangebyscore(self.keys[1], fetched_at, fetched_at)
        return [tag.decode() for tag in cast("list[bytes]", tags)]

    def _client(self) -> redis.Redis:
        """Without kombu's own prefixing, which knows few commands."""
        return redis.Redis(connection_pool=self.channel.pool)
