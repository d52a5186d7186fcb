"""Functions by which threads share the pool of database connections.

A thread that waits keeps no connection that others could use. A thread that serves all others never waits for one.
"""

import contextlib
from collections.abc import Iterator

from django.db import DEFAULT_DB_ALIAS, connection
from django.db import connections as databases

from inference import budget


def release_connection() -> None:
    """Return this thread's connection to the pool, before a wait.

    Without a pool the connection is the thread's own, and is kept. In a transaction it is kept, too.
    """
    if databases.settings[DEFAULT_DB_ALIAS]["OPTIONS"].get("pool") and not connection.in_atomic_block:
        connection.close()


@contextlib.contextmanager
def release_connection_while_waiting(limit_s: float) -> Iterator[float]:
    """Yield the seconds that a request may wait for another request: `limit_s`, or what is left of its budget.

    Meanwhile other requests may have its connection of the pool.
    """
    release_connection()
    with budget.counted_wait(limit_s) as left_s:
        yield left_s


def bypass_connection_pool() -> None:
    """Give this thread a connection of its own beside the pool, from now on."""
    connection.is_own = True  # type: ignore[attr-defined]  # read by inference.store.postgresql


def close_stale_connection() -> None:
    """Close this thread's connection if the server has closed it meanwhile.

    A thread that runs as long as its process calls this before it uses its connection again.
    """
    if connection.connection is not None and not connection.is_usable():
        connection.close()
