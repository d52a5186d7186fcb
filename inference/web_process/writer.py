"""The writer: one thread a process that stores and sends accepted jobs.

Jobs that arrive together are stored in one transaction and sent together.
A request thread opens no database connection to submit, and writers do not queue up for the database's lock.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence

from django.db import connection, transaction

from inference import clock, failpoints
from inference.connection_retries import is_away
from inference.errors import StoreUnavailable, make_nothing_stored_error
from inference.models import Bulk, Job
from inference.store import connections, job_rows
from inference.store.connections import release_connection_while_waiting
from inference.store.job_messages import make_message, send_messages

logger = logging.getLogger(__name__)

PATIENCE_S = 5.0  # an answer must be given within 6 s
MAX_GROUP = 256
CUT_OFF = ("08", "57P")  # beginnings of the SQLSTATE if the connection, or the server, ended


class PendingWrite:
    """One job that is being written to the database.

    Most requests do not wait for the write, but for the end of the job.
    """

    def __init__(self, job: Job, refused: Callable[[Exception], None] | None = None) -> None:
        self.job = job
        self.row = job_rows.convert_job_to_row(job)
        self.size = self.row.size
        self.refused = refused  # called with the error at once, in the writer's thread
        self.error: Exception | None = None
        self.is_finished = False
        self._open = threading.Lock()  # held until it is settled; a lock costs a third of an event
        self._open.acquire()

    def finish_write(self, error: Exception | None) -> None:
        if self.is_finished:
            return
        self.error = error
        self.job._state.adding = error is not None
        self.is_finished = True
        self._open.release()
        if error and self.refused:
            self.refused(error)

    def wait(self, limit_s: float) -> None:
        """Wait until it is settled, or for `limit_s`; only one thread may wait."""
        if not self.is_finished:
            self._open.acquire(timeout=limit_s)


class Writer:
    """The writer of this process; its thread starts with the first job, and no error ends it."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self.pending: list[PendingWrite] = []
        self._thread: threading.Thread | None = None

    def write_job(self, job: Job) -> None:
        """Store and send a job, and return when its row is committed.

        Raises `StoreUnavailable`, and `IntegrityError` if the idempotency key is taken.
        """
        self.wait_for_write(self.enqueue_job(job), PATIENCE_S)

    def enqueue_job(self, job: Job, refused: Callable[[Exception], None] | None = None) -> PendingWrite:
        """Hand a job to the writer, and return at once.

        It is for a request that waits for the job's end anyway, and that calls `wait_for_write` if the end does
        not come soon. `refused` is called with the error if the job is not stored.
        """
        pending = PendingWrite(job, refused)
        if connection.in_atomic_block:  # the row belongs to the caller's transaction
            insert_group([pending.row])
            transaction.on_commit(lambda: send_messages([make_message(job)]))
            pending.finish_write(None)
            return pending
        with self._arrived:
            self._ensure_thread()
            self.pending.append(pending)
            self._arrived.notify()
        return pending

    def wait_for_write(self, pending: PendingWrite, patience_s: float) -> None:
        """Wait until the row is committed.

        Raises `StoreUnavailable`, also if it is not committed within `patience_s`, and `IntegrityError` if the
        idempotency key is taken.
        """
        with release_connection_while_waiting(patience_s) as left_s:
            pending.wait(left_s)
        if not pending.is_finished and self._withdraw(pending):
            raise make_nothing_stored_error()
        if not pending.is_finished:
            raise _make_perhaps_stored_error(pending.job)
        if pending.error:
            raise pending.error

    def _withdraw(self, pending: PendingWrite) -> bool:
        """Withdraw a write, and return True if it was not begun: then it never will be."""
        with self._arrived:
            if withdrawn := pending in self.pending:
                self.pending.remove(pending)
            return withdrawn

    def _ensure_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._write_forever, name="writer", daemon=True)
            self._thread.start()

    def _write_forever(self) -> None:
        connections.bypass_connection_pool()
        while True:
            group = self._wait_for_group()
            try:
                send_messages([make_message(job) for job in self._write(group)])
            except Exception as error:
                logger.exception("writer failed, %d jobs are refused", len(group))
                for pending in group:
                    pending.finish_write(error)

    def _wait_for_group(self) -> list[PendingWrite]:
        with self._arrived:
            while not self.pending:
                self._arrived.wait()
            group = next(job_rows.split_by_size(self.pending, MAX_GROUP))
            del self.pending[: len(group)]
            return group

    def _write(self, group: list[PendingWrite]) -> list[Job]:
        """Commit the rows, let their requests go on, and return the jobs that were stored.

        A row that cannot be written never keeps the others out.
        """
        try:
            _connect()
        except Exception as error:
            return self._refuse_or_split(group, error, is_certain=True)
        try:
            insert_group([pending.row for pending in group])
        except Exception as error:
            return self._refuse_or_split(group, error, is_certain=_is_refusal(error))
        for pending in group:
            pending.finish_write(None)
        return [pending.job for pending in group]

    def _refuse_or_split(self, group: list[PendingWrite], error: Exception, *, is_certain: bool) -> list[Job]:
        if is_away(error):
            self._refuse_all(group, error, is_certain=is_certain)
        elif len(group) == 1:
            group[0].finish_write(error)
        else:
            middle = len(group) // 2
            return self._write(group[:middle]) + self._write(group[middle:])
        return []

    def _refuse_all(self, group: list[PendingWrite], error: Exception, *, is_certain: bool) -> None:
        """Refuse the group, and the jobs that came while the database did not answer: they have waited for it, too."""
        connection.close()
        with self._arrived:
            waiting, self.pending = self.pending, []
        logger.warning("%d jobs refused, the database is away: %s", len(group) + len(waiting), error)
        for pending in group:
            pending.finish_write(make_nothing_stored_error() if is_certain else _make_perhaps_stored_error(pending.job))
        for pending in waiting:
            pending.finish_write(make_nothing_stored_error())


def _connect() -> None:
    connections.close_stale_connection()
    connection.ensure_connection()
    clock.measure_offset(connection)


def _is_refusal(error: Exception) -> bool:
    """Return True if the database refused the rows; False if it was cut off, and may have stored them."""
    if connection.vendor != "postgresql":
        return True
    state = getattr(error.__cause__, "sqlstate", None)
    return state is not None and not state.startswith(CUT_OFF)


def insert_group(group: Sequence[job_rows.JobRow]) -> None:
    failpoints.reach("before_insert")
    job_rows.insert_jobs(group)
    failpoints.reach("after_insert")


@contextlib.contextmanager
def report_perhaps_stored_row(row: Job | Bulk) -> Iterator[None]:
    """Raise `StoreUnavailable`, which names `row`, if the database is away in the block.

    The block begins with the commit of the row, which may therefore have been stored.
    """
    try:
        yield
    except Exception as error:
        if is_away(error):
            raise _make_perhaps_stored_error(row) from error
        raise


def _make_perhaps_stored_error(row: Job | Bulk) -> StoreUnavailable:
    kind = row._meta.model_name
    return StoreUnavailable(
        f"The database did not answer in time, and may have stored the {kind} {row.id}. Look for it before you send it"
        " again; with an Idempotency-Key, sending it again is safe.",
        retry_after_s=5,
        **{f"{kind}_id": row.id},
    )
