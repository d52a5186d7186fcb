"""The one module that reads clocks of the day. All other modules call it, or measure durations by `time.monotonic`.

The database's clock decides over data: in SQL by `Now()`, elsewhere by `read_database_clock`. `get_database_time` and
`estimate_now_s` are near that clock without a query: a process measures how far its host's clock is off as it connects
and as it writes. It measures once a minute at most, but at once after the host's clock was set or the host slept.
`get_database_time` looks for that, too.
"""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING, Any

from django.db import connection

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

MEASURED_EVERY_S = 60.0
AGREED_S = 0.1  # clocks that differ by less are taken to agree
_SQL = {
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
    "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400.0",
}

_off_s = 0.0
_measured_at = float("-inf")
_begun_s = 0.0  # when the host's monotonic clock was zero, by the host's clock of the day at the last measurement


def estimate_now_s() -> float:
    """Return the seconds since 1970 that the database's clock shows, as last measured."""
    return time.time() + _off_s


def estimate_earliest_now_s() -> float:
    """Return `estimate_now_s()`, or the earlier of two possible times.

    There are two if the host's clock was set since the last measurement.
    A deadline that has passed by this time has passed for certain.
    """
    if _measured_at == float("-inf") or not _was_host_clock_set():
        return estimate_now_s()
    return min(estimate_now_s(), time.monotonic() + _begun_s + _off_s)


def get_offset_s() -> float:
    """Return the seconds by which the host's clock is behind the database's, as last measured."""
    return _off_s


def estimate_now() -> datetime.datetime:
    """Return `estimate_now_s()` as a datetime in UTC. It is the host's time in a process that has not connected yet."""
    return datetime.datetime.fromtimestamp(estimate_now_s(), datetime.UTC)


def get_database_time() -> datetime.datetime:
    """Return the database's time, as last measured.

    The database is asked if it never was before, or if the host's clock was set since the last measurement. Raises
    `OperationalError` if it cannot be asked.
    """
    if _measured_at == float("-inf") or _was_host_clock_set():
        connection.ensure_connection()
        measure_offset(connection)
    return estimate_now()


def read_database_clock() -> datetime.datetime:
    """Ask the database what time it is. Raises the errors of the database."""
    return datetime.datetime.fromtimestamp(_query_clock(connection), datetime.UTC)


def measure_offset(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Measure how far the host's clock is off.

    Django calls this for every new connection. It does nothing if the last measurement is less than a minute old and
    the host's clock was not set since. SQLite has the host's clock, so that the difference is zero.
    """
    global _off_s, _measured_at, _begun_s  # noqa: PLW0603 - of this process
    if time.monotonic() < _measured_at + MEASURED_EVERY_S and not _was_host_clock_set():
        return
    begun_s = _compute_monotonic_start_s()
    if connection.vendor == "postgresql":
        queried_at = time.time()
        found = _query_clock(connection)
        took_s = time.time() - queried_at
        offset_s = found - queried_at - took_s / 2
        _off_s = offset_s if abs(offset_s) > AGREED_S + took_s / 2 else 0.0
    _measured_at, _begun_s = time.monotonic(), begun_s


def _compute_monotonic_start_s() -> float:
    return time.time() - time.monotonic()


def _was_host_clock_set() -> bool:
    """Return True if the host's clock was set, or the host slept, since the last measurement."""
    return abs(_compute_monotonic_start_s() - _begun_s) >= AGREED_S


def _query_clock(connection: BaseDatabaseWrapper) -> float:
    with connection.cursor() as cursor:
        cursor.execute(_SQL[connection.vendor])
        (found,) = cursor.fetchone()
    return float(found)
