"""Django's SQLite backend with counted waits for the file's lock.

All waits of a request together take no longer than one may.
"""

import functools
import sqlite3
from collections.abc import Iterable
from typing import Any

from django.db.backends.sqlite3 import base

from inference import budget


@functools.lru_cache(maxsize=256)
def _convert_sql(query: str) -> str:
    """Convert a query as Django does, and cache the result.

    Django converts it each time, which takes a tenth of the run of a long statement.
    """
    return str(base.FORMAT_QMARK_REGEX.sub("?", query)).replace("%%", "%")


class Cursor(base.SQLiteCursorWrapper):
    def convert_query(self, query: str, *, param_names: Iterable[str] | None = None) -> str:
        if param_names is None:
            return _convert_sql(query)
        return str(super().convert_query(query, param_names=param_names))

    def execute(self, *statement: Any) -> Any:
        with budget.counted_wait():
            return super().execute(*statement)


class DatabaseWrapper(base.DatabaseWrapper):
    _patience_ms = 0  # the connection's busy_timeout

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        self._patience_ms = 0
        return super().get_new_connection(conn_params)

    def create_cursor(self, name: str | None = None) -> Any:
        if not (left_s := budget.get_remaining_s()):
            raise sqlite3.OperationalError(budget.SPENT)
        patience_ms = int(1000 * min(self.settings_dict["OPTIONS"]["timeout"], max(left_s, budget.GRACE_S)))
        if patience_ms != self._patience_ms:
            self.connection.execute(f"PRAGMA busy_timeout = {patience_ms}")
            self._patience_ms = patience_ms
        return self.connection.cursor(factory=Cursor)
