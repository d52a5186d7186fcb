"""Jobs that are stored in one transaction and sent together.

No `Job` object is made for each of them: that alone would cost more.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import transaction

from inference import budget
from inference.broker import publisher
from inference.broker.messages import JobMessage, pack_jobs
from inference.catalog.specs import ModelSpec
from inference.errors import InvalidInput
from inference.fields import json_field
from inference.fields.ids import make_row_id
from inference.models import Bulk, Job
from inference.store import job_messages, job_rows
from inference.web_process import writer

PACKED, PACKED_AMQP = 32, 8  # jobs of one message; RabbitMQ limits the messages that a worker holds, not their jobs


class NewJob(NamedTuple):
    """A new job, with what is stored and sent of it."""

    id: UUID
    row: job_rows.JobRow
    common: JobMessage
    size: int
    length: int


@dataclass(frozen=True, slots=True)
class SharedColumns:
    """The columns and the message that jobs with the same parameters have in common."""

    like: Callable[..., job_rows.JobRow]
    message: JobMessage

    def make_job(self, size: int, length: int, **own: Any) -> NewJob:
        """Make one of the jobs, with its `own` columns."""
        job_id = make_row_id()
        row = self.like(id=job_id, size=size, length=length, **own)
        return NewJob(job_id, row, self.message, size, length)


def check_parameter_size(given: Mapping[str, Any], jobs: int) -> None:
    """Raise `InvalidInput` if parameters that are given once are too large to be stored with each of `jobs` jobs."""
    most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE // jobs
    if given and len(json_field.dumps(given)) > most:
        raise InvalidInput(
            f"parameters: of {jobs} jobs at most {most} bytes, since each keeps them. Send fewer inputs at once.",
            field="parameters",
        )


@contextlib.contextmanager
def open_transaction(row: Job | Bulk) -> Iterator[None]:
    """Run the block in one transaction.

    Raises `StoreUnavailable`, which names `row`, if the transaction may have been committed.
    """
    with contextlib.ExitStack() as committed, transaction.atomic():
        yield
        committed.enter_context(writer.report_perhaps_stored_row(row))


def insert_rows_by_statement(statements: Sequence[Sequence[job_rows.JobRow]]) -> None:
    """Insert rows within a transaction; only the first statement counts against the time of the request."""
    first, *others = statements
    writer.insert_group(first)
    with budget.lift_budget():
        for statement in others:
            writer.insert_group(statement)


def send_messages(spec: ModelSpec, jobs: Sequence[NewJob]) -> None:
    """Send the messages of jobs that are committed.

    Neighbours share a message, which has no more rows than a batch, so that several workers get a share of the jobs.
    """
    most = PACKED if publisher.uses_redis() else PACKED_AMQP
    for chunk in job_rows.split_into_chunks(jobs):
        messages: list[JobMessage] = []
        for _, same in itertools.groupby(chunk, key=lambda job: id(job.common)):
            first, *others = same
            entries = ((str(job.id), job.size, job.length) for job in (first, *others))
            messages += pack_jobs(first.common, entries, most=most, rows=spec.max_batch_size)
        job_messages.send_messages(messages)
