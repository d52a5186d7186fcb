"""The retries of what failed as the connection to the database or the broker was lost.

Only a lost connection is tried again, and never without a bound or a growing pause. Each other kind ends in one job's
outcome or one caller's error, as the same call would fail again for ever.
"""

from __future__ import annotations

import enum
import logging
import random
import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

import redis
from django.db import DatabaseError, DataError, IntegrityError, InterfaceError, OperationalError, connection

logger = logging.getLogger(__name__)
T = TypeVar("T")


class ServerErrorKind(enum.Enum):
    CONNECTION = "connection lost"  # the server is away, restarting, locked or full: the same call may succeed later
    STATEMENT = "statement refused"  # the server does not take such a call: a missing table, a missing right
    DATA = "data refused"  # these values cannot be stored
    BUG = "bug"  # any exception that was not foreseen


# First characters of an SQLSTATE (https://www.postgresql.org/docs/current/errcodes-appendix.html).
_AWAY = (
    "08",  # connection exception
    "25006",  # read-only: a standby that is being promoted
    "25P03",  # ended by the server, as this process did nothing for too long within a transaction
    "40",  # rolled back: a deadlock, a serialization failure
    "53",  # disk, memory or connections used up
    "55P03",  # a lock was not available in time
    "57",  # shut down, starting up, or cancelled by statement_timeout
    "58",  # input or output of the server's host
)
_REFUSED_DATA = ("22", "23", "54")

_SQLITE_AWAY = frozenset(
    {
        sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_INTERRUPT,
    }
)  # fmt: skip

_REDIS_AWAY = (redis.ConnectionError, redis.TimeoutError, redis.OutOfMemoryError, redis.ReadOnlyError)


def classify_server_error(error: BaseException) -> ServerErrorKind:
    """Return the kind of an error of the database or the broker, or of a value that cannot be encoded for them."""
    if isinstance(error, DatabaseError | InterfaceError):
        return _classify_database_error(error)
    if isinstance(error, redis.RedisError):
        return _classify_redis_error(error)
    if isinstance(error, ConnectionError | TimeoutError):
        return ServerErrorKind.CONNECTION
    return ServerErrorKind.DATA if isinstance(error, UnicodeError) else ServerErrorKind.BUG


def is_away(error: BaseException) -> bool:
    """Return True if trying again later can help."""
    return classify_server_error(error) is ServerErrorKind.CONNECTION


def _classify_database_error(error: DatabaseError | InterfaceError) -> ServerErrorKind:
    cause = error.__cause__
    if state := getattr(cause, "sqlstate", None):
        if state.startswith(_AWAY):
            return ServerErrorKind.CONNECTION
        return ServerErrorKind.DATA if state.startswith(_REFUSED_DATA) else ServerErrorKind.STATEMENT
    if code := getattr(cause, "sqlite_errorcode", None):
        if code & 0xFF in _SQLITE_AWAY:  # the low byte of an extended code
            return ServerErrorKind.CONNECTION
        return ServerErrorKind.DATA if isinstance(error, DataError | IntegrityError) else ServerErrorKind.STATEMENT
    if isinstance(error, DataError | IntegrityError):
        return ServerErrorKind.DATA
    return (
        ServerErrorKind.CONNECTION
        if isinstance(error, OperationalError | InterfaceError)
        else ServerErrorKind.STATEMENT
    )


def _classify_redis_error(error: redis.RedisError) -> ServerErrorKind:
    if isinstance(error, _REDIS_AWAY) or str(error).startswith(("MISCONF", "LOADING", "CLUSTERDOWN", "TRYAGAIN")):
        return ServerErrorKind.CONNECTION
    return ServerErrorKind.DATA if isinstance(error, redis.DataError) else ServerErrorKind.STATEMENT


class Backoff:
    """The pauses between tries: `first_s`, then twice as long each time up to `longest_s`.

    Each pause is up to a fifth longer or shorter at random.
    """

    def __init__(self, *, first_s: float, longest_s: float) -> None:
        self.first_s, self.longest_s = first_s, longest_s
        self.pause_s = first_s

    def take_next_pause_s(self) -> float:
        pause_s, self.pause_s = self.pause_s, min(self.pause_s * 2, self.longest_s)
        return pause_s * random.uniform(0.8, 1.2)

    def reset(self) -> None:
        """Begin again with the first pause, as a try has succeeded."""
        self.pause_s = self.first_s


def retry_while_away(call: Callable[[], T], *, limit_s: float) -> T:
    """Return what `call` returns. It is tried again for `limit_s` while the connection to the database is lost.

    Raises the error of the last try, and any other error at once.
    """
    backoff = Backoff(first_s=0.1, longest_s=1.0)
    give_up_at = time.monotonic() + limit_s
    while True:
        try:
            return call()
        except Exception as error:
            if not is_away(error) or time.monotonic() > give_up_at:
                raise
            logger.warning("connection lost, trying again: %s", error)
        connection.close()
        time.sleep(backoff.take_next_pause_s())
