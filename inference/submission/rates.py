"""How often something may happen: so many times a minute, evenly, with a tenth of a minute's worth at once.

The generic cell rate algorithm (ITU-T I.371): one moment a name, kept in Redis for all processes, by its clock. While
Redis is away each process counts for itself. A moment further ahead than any time that was allowed is of a clock that
was set back since, and counts no more.
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


def _key(name: str) -> str:
    return f"{settings.SERVICE_PREFIX}inference.rate:{name}"


_lock = threading.Lock()
_due: dict[str, float] = {}  # by name: when the next is due, by this process's clock


def take(name: str, per_minute: int) -> float:
    """0.0, and this time is counted; or the seconds until the next time is allowed, and it is not."""
    step_s = 60.0 / per_minute
    burst_s = max(6.0 - step_s, 0.0)
    try:
        with redis_client.call() as client:
            return float(client.eval(LUA, 1, _key(name), step_s, burst_s))
    except (redis.RedisError, BrokerUnavailable):
        return _take_alone(name, step_s, burst_s)


def _take_alone(name: str, step_s: float, burst_s: float) -> float:
    """The same for one process."""
    now = time.monotonic()
    with _lock:
        due = max(_due.get(name, 0.0), now)
        if due - now > burst_s:
            return due - now - burst_s
        _due[name] = due + step_s
    return 0.0
