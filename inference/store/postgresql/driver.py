"""psycopg, with connections whose waits are bounded: no thread hangs on a server that is stopped or cut off.

The kernel of a stopped server still acknowledges what is sent, so neither the server's `statement_timeout` nor TCP's
own timeouts end such a wait. Here the client stops waiting too, and closes the connection.

This is a module as PEP 249 has it, which Django takes for the database's.
"""

import select
from typing import Any

import psycopg
from psycopg import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)
from psycopg.pq import TransactionStatus

from inference import budget
from inference.budget import GRACE_S

__all__ = [
    "Connection", "DataError", "DatabaseError", "Error", "IntegrityError", "InterfaceError", "InternalError",
    "NotSupportedError", "OperationalError", "ProgrammingError", "connect", "is_stale",
]  # fmt: skip


class Connection(psycopg.Connection[Any]):
    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        limit_s = budget.read_statement_timeout_setting()
        if timeout is None and limit_s:
            left_s = max(budget.get_remaining_s() - GRACE_S, 0)
            timeout = min(limit_s, left_s) + GRACE_S  # so that a ROLLBACK has time, too
        try:
            with budget.counted_wait():
                return super().wait(gen, interval, timeout)
        except OperationalError as error:
            if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
                raise
            self.pgconn.finish()  # the answer may still come, and nothing would read it
            raise OperationalError(f"the server gave no answer within {timeout:g} s") from error


connect = Connection.connect


def is_stale(connection: Connection) -> bool:
    """Return True if the connection is closed, or has data to read although no statement runs.

    Such data is, for example, the server's notice that it ends the connection. The check costs no query.
    """
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))
