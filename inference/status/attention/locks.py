"""A check whether a lock in the database keeps all writers waiting. It changes no data."""

from __future__ import annotations

import sqlite3

from django.db import connection

from inference import budget

PATIENCE_S = 2.0  # a writer that waits longer for a lock is reported
_WAITING = """
SELECT extract(epoch FROM clock_timestamp() - query_start), pg_blocking_pids(pid) FROM pg_stat_activity
JOIN pg_locks USING (pid) WHERE NOT granted AND locktype = 'relation' AND datname = current_database()
ORDER BY query_start LIMIT 1
"""


def find_lock_problem() -> str:
    """Return a sentence if writers wait for a lock, else an empty string.

    In a transaction of the caller nothing is checked, and the string is empty.
    """
    if connection.in_atomic_block:
        return ""
    return _find_file_lock_problem() if connection.vendor == "sqlite" else _find_server_lock_problem()


def _find_file_lock_problem() -> str:
    """Return the problem of an SQLite file, which has one lock for all writers."""
    connection.ensure_connection()
    file = connection.connection
    (patience_ms,) = file.execute("PRAGMA busy_timeout").fetchone()
    file.execute(f"PRAGMA busy_timeout = {1000 * PATIENCE_S:.0f}")
    try:
        with budget.counted_wait():
            file.execute("BEGIN IMMEDIATE")
            file.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        return f"{error}, for {PATIENCE_S:g} s at least."
    finally:
        file.execute(f"PRAGMA busy_timeout = {patience_ms}")
    return ""


def _find_server_lock_problem() -> str:
    with connection.cursor() as cursor:
        cursor.execute(_WAITING)
        waited_s, holders = cursor.fetchone() or (0, [])
    if waited_s <= PATIENCE_S:
        return ""
    return f"a statement waits for {waited_s:.0f} s for a lock of process {', '.join(map(str, holders))}."
