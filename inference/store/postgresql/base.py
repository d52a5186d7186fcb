"""Django's PostgreSQL backend with bounded waits: no thread hangs on a server that is stopped or cut off.

The kernel of a stopped server still acknowledges what is sent, so neither the server's `statement_timeout` nor TCP's
own timeouts end such a wait. Here the client stops waiting too, and closes the connection.
"""

import select
import types
from typing import Any

import psycopg
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.postgresql import base
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool

from inference import budget
from inference.budget import GRACE_S


class Connection(psycopg.Connection[Any]):
    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        limit_s = budget.statement_limit_s()
        if timeout is None and limit_s:
            timeout = min(limit_s, max(budget.remaining_s() - GRACE_S, 0)) + GRACE_S  # so that a ROLLBACK has time, too
        try:
            with budget.counted_wait():
                return super().wait(gen, interval, timeout)
        except psycopg.OperationalError as error:
            if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
                raise
            self.pgconn.finish()  # the answer may still come, and nothing would read it
            raise psycopg.OperationalError(f"the server gave no answer within {timeout:g} s") from error


class Pool(ConnectionPool[Connection]):
    def getconn(self, timeout: float | None = None) -> Connection:
        with budget.counted_wait(self.timeout) as patience_s:
            return super().getconn(patience_s)


class DatabaseWrapper(base.DatabaseWrapper):
    Database: Any = types.SimpleNamespace(**{**vars(psycopg), "connect": Connection.connect})
    is_own = False  # True in a thread whose connection is beside the pool
    _connection_pools: dict[str, Pool] = {}

    @property
    def pool(self) -> Any:
        """The connection pool that Django makes, but of this module's classes."""
        options = self.settings_dict["OPTIONS"].get("pool")
        if self.is_own or not options or self.alias == NO_DB_ALIAS:
            return None
        if self.alias not in self._connection_pools:
            arguments = {**self.get_connection_params(), "autocommit": True}
            configure: Any = self._configure_connection  # type: ignore[attr-defined]
            pool = Pool(kwargs=arguments, connection_class=Connection, configure=configure, open=False, **options)
            self._connection_pools.setdefault(self.alias, pool)
        return self._connection_pools[self.alias]

    def get_connection_params(self) -> dict[str, Any]:
        params = super().get_connection_params()
        if limit_s := budget.statement_limit_s():
            params["options"] = f"-c statement_timeout={limit_s * 1000:.0f} {params.get('options', '')}".strip()
        return params

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """Return a connection that the server has not closed, so that its restart makes no request fail."""
        connection = super().get_new_connection(conn_params)
        while self.pool and is_stale(connection):
            connection.close()
            self.pool.putconn(connection)
            connection = super().get_new_connection(conn_params)
        return connection

    def create_cursor(self, name: str | None = None) -> Any:
        if not budget.remaining_s():
            raise psycopg.OperationalError(budget.SPENT)
        return super().create_cursor(name)

    def is_usable(self) -> bool:
        return self.connection is not None and not is_stale(self.connection)


def is_stale(connection: psycopg.Connection[Any]) -> bool:
    """Return True if the connection is closed, or has data to read although no statement runs.

    Such data is, for example, the server's notice that it ends the connection. The check costs no query.
    """
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))
