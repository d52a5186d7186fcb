"""Functions by which threads share the pool of database connections.

A thread that waits keeps no connection that others could use. A thread that serves all others never waits for one.
"""

from django.db import DEFAULT_DB_ALIAS, connection
from django.db import connections as databases


def release_connection() -> None:
    """Return this thread's connection to the pool, before a wait.

    Without a pool the connection is the thread's own, and is kept. In a transaction it is kept, too.
    """
    if databases.settings[DEFAULT_DB_ALIAS]["OPTIONS"].get("pool") and not connection.in_atomic_block:
        connection.close()


def use_own_connection() -> None:
    """Give this thread a connection of its own beside the pool, from now on."""
    connection.is_own = True  # type: ignore[attr-defined]  # read by inference.store.postgresql


def close_stale_connection() -> None:
    """Close this thread's connection if the server has closed it meanwhile.

    A thread that runs as long as its process calls this before it uses its connection again.
    """
    if connection.connection is not None and not connection.is_usable():
        connection.close()
