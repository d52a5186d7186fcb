"""Who waits keeps no database connection that others could use, and who serves all others queues up for none."""

from django.db import DEFAULT_DB_ALIAS, connection
from django.db import connections as databases


def give_back() -> None:
    """Before a wait: a connection of the pool goes back to it. Without a pool it is the thread's own, and kept."""
    if databases.settings[DEFAULT_DB_ALIAS]["OPTIONS"].get("pool") and not connection.in_atomic_block:
        connection.close()


def own() -> None:
    """This thread's connection is one beside the pool, from now on."""
    connection.is_own = True  # type: ignore[attr-defined]  # read by inference.store.postgresql


def ready() -> None:
    """Let go of a connection that the server has closed meanwhile, before a thread that lives on uses it again."""
    if connection.connection is not None and not connection.is_usable():
        connection.close()
