"""Django's PostgreSQL backend, whose waits are bounded: no thread hangs on a server that is stopped or cut off.

The kernel of a stopped server still acknowledges what is sent, so neither the server's `statement_timeout` nor TCP's
own timeouts end such a wait. Here the client stops waiting too, and closes the connection.
"""

from __future__ import annotations

import os
import select
import types
from typing import Any

import psycopg
from django.db.backends.postgresql import base
from psycopg.pq import TransactionStatus

GRACE_S = 0.5  # the server cancels a statement, and says so, before the client stops waiting


def answer_limit_s() -> float:
    """How long a statement of this process may take; 0: as long as it takes."""
    return float(os.environ.get("DATABASE_ANSWER_S", 0))


class Connection(psycopg.Connection[Any]):
    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        limit_s = answer_limit_s()
        if timeout is None and limit_s:
            timeout = limit_s + GRACE_S
        try:
            return super().wait(gen, interval, timeout)
        except psycopg.OperationalError as error:
            if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
                raise
            self.pgconn.finish()  # its answer may come yet, to nobody
            raise psycopg.OperationalError(f"the server gave no answer within {timeout:g} s") from error


class DatabaseWrapper(base.DatabaseWrapper):
    Database: Any = types.SimpleNamespace(**{**vars(psycopg), "connect": Connection.connect})
    is_own = False  # of a thread that has a connection beside the pool

    @property
    def pool(self) -> Any:
        if self.is_own:
            return None
        if options := self.settings_dict["OPTIONS"].get("pool"):
            options["connection_class"] = Connection
        return super().pool

    def get_connection_params(self) -> dict[str, Any]:
        params = super().get_connection_params()
        if limit_s := answer_limit_s():
            params["options"] = f"-c statement_timeout={limit_s * 1000:.0f} {params.get('options', '')}".strip()
        return params

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """Out of the pool comes none that the server has closed: a restart costs no request."""
        connection = super().get_new_connection(conn_params)
        while self.pool and is_stale(connection):
            connection.close()
            self.pool.putconn(connection)
            connection = super().get_new_connection(conn_params)
        return connection

    def is_usable(self) -> bool:
        return self.connection is not None and not is_stale(self.connection)


def is_stale(connection: psycopg.Connection[Any]) -> bool:
    """Whether the server has said something, such as good-bye, to a connection that asks nothing. Costs no query."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))
