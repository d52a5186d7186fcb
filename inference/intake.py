"""Accepted jobs are written by one thread a process: what arrives together is one transaction and one send.

A request thread opens no database connection to submit, and writers do not queue up for the database's lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from django.db import DatabaseError, IntegrityError, InterfaceError, connection, transaction

from inference import catalog, failpoints, rows
from inference.broker import publish
from inference.errors import BrokerUnavailable, InferenceError, StoreUnavailable
from inference.models import Job
from inference.turns import turns

logger = logging.getLogger(__name__)

PATIENCE_S = 5.0  # an answer must be given within 6 s
MAX_GROUP = 256


class Submission:
    """One job on its way into the database."""

    def __init__(self, job: Job, refused: Callable[[Exception], None] | None = None) -> None:
        self.job = job
        self.refused = refused  # told at once, by the intake's thread
        self.error: Exception | None = None
        self.written = threading.Event()
        self.abandoned = False

    def confirm(self, patience_s: float = PATIENCE_S) -> None:
        """Returns when the row is committed. Raises `IntegrityError` for a key that is taken, `StoreUnavailable`."""
        with turns.lent():
            written = self.written.wait(patience_s)
        if not written:
            self.abandoned = True
            raise _unavailable()
        if self.error:
            raise self.error

    def settle(self, error: Exception | None) -> None:
        if self.written.is_set():
            return
        self.error = error
        self.written.set()
        if error and self.refused:
            self.refused(error)


class Intake:
    """Writes and sends the jobs of this process. Its thread starts with the first job, and never ends of an error."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._submissions: list[Submission] = []
        self._thread: threading.Thread | None = None

    def accept(self, job: Job) -> None:
        """Returns when the row is committed. Raises `IntegrityError` for a key that is taken, `StoreUnavailable`."""
        self.offer(job).confirm()

    def offer(self, job: Job, refused: Callable[[Exception], None] | None = None) -> Submission:
        """Returns at once: for who waits for the job's end anyway, and confirms when that does not come soon."""
        submission = Submission(job, refused)
        if connection.in_atomic_block:  # the row belongs to the caller's transaction
            insert([job])
            transaction.on_commit(lambda: send([job]))
            submission.settle(None)
            return submission
        with self._arrived:
            self._submissions.append(submission)
            self._ensure_thread()
            self._arrived.notify()
        return submission

    def _ensure_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._write_forever, name="intake", daemon=True)
            self._thread.start()

    def _write_forever(self) -> None:
        while True:
            with self._arrived:
                while not self._submissions:
                    self._arrived.wait()
                group, self._submissions = self._submissions[:MAX_GROUP], self._submissions[MAX_GROUP:]
            try:
                accepted = _write([submission for submission in group if not submission.abandoned])
                send(accepted)
            except Exception as error:
                logger.exception("intake failed, %d jobs are refused", len(group))
                for submission in group:
                    submission.settle(error)


def _write(group: list[Submission]) -> list[Job]:
    """Commit the rows and let their requests go on. One that cannot be written never keeps the others out."""
    try:
        insert([submission.job for submission in group])
    except IntegrityError as error:
        if len(group) > 1:
            return [job for submission in group for job in _write([submission])]
        group[0].settle(error)
        return []
    except (DatabaseError, InterfaceError) as error:
        logger.warning("%d jobs refused, the database is away: %s", len(group), error)
        connection.close()
        for submission in group:
            submission.settle(_unavailable())
        return []
    for submission in group:
        submission.settle(None)
    return [submission.job for submission in group]


def insert(jobs: Sequence[Job]) -> None:
    failpoints.reach("before_insert")
    rows.insert(jobs)
    failpoints.reach("after_insert")


def send(jobs: Sequence[Job]) -> None:
    """Send the messages of committed jobs. What cannot be sent now is sent by the reconciler."""
    if not jobs:
        return
    failpoints.reach("before_publish")
    try:
        publish.publish([message_of(job) for job in jobs])
    except BrokerUnavailable as error:
        logger.warning("%d jobs accepted without a broker, the reconciler sends them: %s", len(jobs), error)
        Job.objects.filter(pk__in=[job.pk for job in jobs]).update(published_at=None)
    failpoints.reach("after_publish")


def message_of(job: Job, *, recovered: bool = False) -> publish.JobMessage:
    """The hint that is sent to the workers: what batching needs, and no inputs."""
    return publish.JobMessage(
        job_id=str(job.id),
        model=job.model,
        queue=f"inference.{job.model}",
        group=catalog.parameters_digest(job.parameters),
        size=job.size,
        length=job.length,
        priority=job.priority,
        created_at=job.created_at.timestamp(),
        expires_at=job.expires_at.timestamp() if job.expires_at else None,
        recovered=recovered,
    )


def _unavailable() -> InferenceError:
    return StoreUnavailable("The database does not answer now; nothing was stored. Try again later.", retry_after_s=5)


intake = Intake()
