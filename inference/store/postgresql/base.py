"""Django's PostgreSQL backend with bounded waits, for the server and for a connection."""

from typing import Any

from django.db.backends.postgresql import base
from psycopg_pool import ConnectionPool

from inference import budget
from inference.store.postgresql import driver

IDLE_S = 30  # that a transaction may wait for its process, which may be stopped: others wait for its locks


class BudgetedPool:
    """The pool that Django makes, each wait for one of whose connections is counted."""

    def __init__(self, pool: ConnectionPool[driver.Connection]) -> None:
        self.pool = pool
        self.open, self.close, self.putconn = pool.open, pool.close, pool.putconn

    def getconn(self) -> driver.Connection:
        with budget.counted_wait(self.pool.timeout) as patience_s:
            return self.pool.getconn(patience_s)


class DatabaseWrapper(base.DatabaseWrapper):
    Database: Any = driver
    is_own = False  # True in a thread whose connection is beside the pool

    @property
    def pool(self) -> Any:
        pool = None if self.is_own else super().pool
        return pool and BudgetedPool(pool)

    def get_connection_params(self) -> dict[str, Any]:
        params = super().get_connection_params()
        if limit_s := budget.read_statement_timeout_setting():
            limits = f"-c statement_timeout={limit_s * 1000:.0f} -c idle_in_transaction_session_timeout={IDLE_S}s"
            params["options"] = f"{limits} {params.get('options', '')}".strip()
        return params

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """Return a connection that the server has not closed, so that its restart makes no request fail."""
        connection = super().get_new_connection(conn_params)
        while self.pool and driver.is_stale(connection):
            connection.close()
            self.pool.putconn(connection)
            connection = super().get_new_connection(conn_params)
        return connection

    def create_cursor(self, name: str | None = None) -> Any:
        if not budget.get_remaining_s():
            raise driver.OperationalError(budget.SPENT)
        return super().create_cursor(name)

    def is_usable(self) -> bool:
        return self.connection is not None and not driver.is_stale(self.connection)
