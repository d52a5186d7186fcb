"""The bindings of exchanges, which lie in Redis as kombu's own transport keeps them.

An exchange has a set of its bindings. If a queue expires, its binding is to be refreshed while the queue is consumed.
The set is deleted once nobody has done so for long, unless another set, of bindings that stay, exists.
"""

from collections.abc import Sequence
from time import monotonic
from typing import Any

import redis

from inference.broker.kombu_redis.scripts import REFRESH_BINDING, SWEEP_BINDINGS

BOUND, PERMANENT = "_kombu.binding.", "_kombu.binding_permanent."  # what the keys of the sets begin with
SEPARATOR = "\x06\x16"
SHORTEST_LIFE_MS = 60 * 60 * 1000  # a consumer may be held up for long
EXPIRIES = 2  # a binding lives for so many times the expiry of its queue
SWEEP_S = 60.0
SWEPT = 100  # exchanges a sweep

Binding = tuple[str, str, str]  # routing key, pattern, queue


class Bindings:
    def __init__(self, client: redis.Redis, deadlines: str) -> None:
        self._client = client
        self._deadlines = deadlines
        self._refresh = client.register_script(REFRESH_BINDING)
        self._sweep = client.register_script(SWEEP_BINDINGS)
        self._refreshed_at = self._swept_at = float("-inf")

    def add(self, exchange: str, binding: Binding) -> None:
        """Add a binding that stays until it is removed."""
        with self._client.pipeline() as pipe:
            for key in BOUND, PERMANENT:
                pipe.sadd(key + exchange, _make_member(binding))
            pipe.execute()

    def renew_binding(self, exchange: str, binding: Binding, expiry_ms: int) -> None:
        """Add the binding of a queue that expires, or make it live longer."""
        keys = [BOUND + exchange, self._deadlines]
        self._refresh(keys=keys, args=[_make_member(binding), exchange, _compute_life_ms(expiry_ms)])

    def remove(self, exchange: str, binding: Binding) -> None:
        with self._client.pipeline() as pipe:
            for key in BOUND, PERMANENT:
                pipe.srem(key + exchange, _make_member(binding))
            pipe.execute()

    def read(self, exchange: str) -> list[tuple[str, ...]]:
        members: Any = self._client.smembers(BOUND + exchange)
        return [tuple(member.decode().split(SEPARATOR)) for member in members]

    def renew_bindings(self, bindings: Sequence[tuple[str, Binding, int]]) -> None:
        """Refresh these bindings of consumed queues, and delete what others have left behind, each when it is due."""
        if not bindings:
            return
        now = monotonic()
        if now - self._refreshed_at >= min(_compute_life_ms(expiry_ms) for *_, expiry_ms in bindings) / 3000:
            for binding in bindings:
                self.renew_binding(*binding)
            self._refreshed_at = now
        if now - self._swept_at >= SWEEP_S:
            self._sweep(keys=[self._deadlines], args=[BOUND, PERMANENT, SWEPT])
            self._swept_at = now


def _make_member(binding: Binding) -> str:
    return SEPARATOR.join(part or "" for part in binding)


def _compute_life_ms(expiry_ms: int) -> int:
    return max(expiry_ms * EXPIRIES, SHORTEST_LIFE_MS)
