"""Rate limits: a number of times a minute, evenly spread, of which a tenth of a minute's worth may come at once.

This is the generic cell rate algorithm (ITU-T I.371). It needs one moment for each name, which is kept in Redis for all
processes, by the clock of Redis. While Redis is away each process counts for itself. A moment further ahead than any
that is allowed was written before that clock was set back, and is ignored.
"""

import threading
import time

import redis
from django.conf import settings

from inference.broker import redis_client
from inference.errors import BrokerUnavailable

LUA = """
local now = redis.call('TIME'); now = now[1] + now[2] / 1e6
local step, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local due = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now)
if due - now > burst + step + 0.001 then due = now end
if due - now > burst then return tostring(due - now - burst) end
redis.call('SET', KEYS[1], string.format('%.6f', due + step), 'PX', math.ceil((burst + step) * 1000) + 1000)
return '0'
"""


def _make_key(name: str) -> str:
    return f"{settings.SERVICE_PREFIX}inference.rate:{name}"


class Rates:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}  # by name: when the next time is due, in monotonic seconds

    def count_against_rate(self, name: str, per_minute: int) -> float:
        """Return 0.0 and count this time if it is allowed; else return the seconds until the next time is allowed."""
        step_s = 60.0 / per_minute
        burst_s = max(6.0 - step_s, 0.0)
        try:
            with redis_client.borrow_client() as client:
                return float(client.eval(LUA, 1, _make_key(name), step_s, burst_s))
        except (redis.RedisError, BrokerUnavailable):
            return self._take_alone(name, step_s, burst_s)

    def _take_alone(self, name: str, step_s: float, burst_s: float) -> float:
        """Do what `count_against_rate` does with the counts of this process alone."""
        now = time.monotonic()
        with self._lock:
            due = max(self._due.get(name, 0.0), now)
            if due - now > burst_s:
                return due - now - burst_s
            self._due[name] = due + step_s
        return 0.0
