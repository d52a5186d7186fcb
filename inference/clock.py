"""The database's clock, which judges deadlines and ages: the clocks of hosts are never compared.

A process measures how far its host's clock is off whenever it connects, once a minute at most.
"""

from __future__ import annotations

import datetime
import time
from typing import Any

from django.db import connection

MEASURED_EVERY_S = 60.0
AGREED_S = 0.1  # clocks that differ by less are taken to agree

_off_s = 0.0
_measured_at = float("-inf")


def time_s() -> float:
    return time.time() + _off_s


def off_s() -> float:
    """By how much the host's clock is behind the database's."""
    return _off_s


def now() -> datetime.datetime:
    """Connects, the first time. Raises `OperationalError` then."""
    if _measured_at == float("-inf"):
        connection.ensure_connection()
    return datetime.datetime.fromtimestamp(time_s(), datetime.UTC)


def measure(connection: Any, **_: Any) -> None:
    """Told of every new connection. A file's clock is the host's."""
    global _off_s, _measured_at  # noqa: PLW0603 - of this process
    if time.monotonic() < _measured_at + MEASURED_EVERY_S:
        return
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            asked_at = time.time()
            cursor.execute("SELECT extract(epoch FROM clock_timestamp())")
            (found,) = cursor.fetchone()
            took_s = time.time() - asked_at
        off_s = float(found) - asked_at - took_s / 2
        _off_s = off_s if abs(off_s) > AGREED_S + took_s / 2 else 0.0
    _measured_at = time.monotonic()
