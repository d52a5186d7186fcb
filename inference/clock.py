"""The one module that reads clocks of the day. All else asks it, or measures durations by `time.monotonic`.

The database's clock decides over data: in SQL by `Now()`, else by `of_database`. `now` and `time_s` are near it, and
ask nobody: a process measures how far its host's clock is off as it connects and as it writes. It does so once a
minute at most, and at once where the host's clock was set meanwhile or the host slept; `now` looks for that, too.
"""

from __future__ import annotations

import datetime
import time
from typing import Any

from django.db import connection

MEASURED_EVERY_S = 60.0
AGREED_S = 0.1  # clocks that differ by less are taken to agree
_ASK = {
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
    "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400.0",
}

_off_s = 0.0
_measured_at = float("-inf")
_begun_s = 0.0  # when this host's monotonic clock was zero, by its clock of the day at the last measurement


def time_s() -> float:
    """Return the seconds since 1970 that the database's clock shows, as far as was measured."""
    return time.time() + _off_s


def earliest_s() -> float:
    """Return the same, or the earlier of two times where the host's clock was set since the last measurement.

    No deadline has passed by it that may not have passed.
    """
    if _measured_at == float("-inf") or not _was_set():
        return time_s()
    return min(time_s(), time.monotonic() + _begun_s + _off_s)


def off_s() -> float:
    """By how much the host's clock is behind the database's."""
    return _off_s


def moment() -> datetime.datetime:
    """Return the same as a moment. A process that has not connected yet has its host's."""
    return datetime.datetime.fromtimestamp(time_s(), datetime.UTC)


def now() -> datetime.datetime:
    """Return the database's time, which is asked for the first time and where the host's clock was set since.

    Raises `OperationalError` where it cannot be asked for.
    """
    if _measured_at == float("-inf") or _was_set():
        connection.ensure_connection()
        measure(connection)
    return moment()


def of_database() -> datetime.datetime:
    """Ask the database what time it is. Raises what the database raises."""
    return datetime.datetime.fromtimestamp(_ask(connection), datetime.UTC)


def measure(connection: Any, **_: Any) -> None:
    """Told of every new connection. A file's clock is the host's."""
    global _off_s, _measured_at, _begun_s  # noqa: PLW0603 - of this process
    if time.monotonic() < _measured_at + MEASURED_EVERY_S and not _was_set():
        return
    begun_s = _begins_s()
    if connection.vendor == "postgresql":
        asked_at = time.time()
        found = _ask(connection)
        took_s = time.time() - asked_at
        off_s = found - asked_at - took_s / 2
        _off_s = off_s if abs(off_s) > AGREED_S + took_s / 2 else 0.0
    _measured_at, _begun_s = time.monotonic(), begun_s


def _begins_s() -> float:
    return time.time() - time.monotonic()


def _was_set() -> bool:
    """Return whether the host's clock was set, or the host slept, since the last measurement."""
    return abs(_begins_s() - _begun_s) >= AGREED_S


def _ask(connection: Any) -> float:
    with connection.cursor() as cursor:
        cursor.execute(_ASK[connection.vendor])
        (found,) = cursor.fetchone()
    return float(found)
