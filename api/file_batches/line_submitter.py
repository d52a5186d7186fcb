"""The step from the lines of a batch's file to jobs, in portions: no queue is filled by a batch, and no memory.

A portion is stored in one transaction with the place in the file up to which the lines are jobs. A process that dies
leaves both or neither, and two processes at one batch store each line once. Lines whose body is refused are stored,
too, as jobs that have failed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any
from uuid import UUID, uuid4

from django.conf import settings
from django.db import transaction

from api import codec
from api.errors.problems import ApiError
from api.file_batches.endpoints import ENDPOINTS
from api.file_batches.lines import Line, read_lines
from api.models import BatchStatus, FileBatch
from inference import clock
from inference.broker.messages import JobMessage
from inference.catalog.sizes.lengths import Part
from inference.catalog.specs import ModelSpec, digest_parameters
from inference.connection_retries import is_away
from inference.errors import InferenceError, InvalidInput, UnknownModel
from inference.models import WAITING, Bulk, Job, Status
from inference.store import job_rows, outcome_records
from inference.store.job_messages import make_message
from inference.store.outcome_records import Outcome
from inference.submission import admission, jobs, multi_job_store, split_jobs
from inference.submission.multi_job_store import NewJob
from inference.submission.submissions import Submission
from inference.values.priority import Priority
from inference.web_process import writer

logger = logging.getLogger(__name__)

UNREADABLE = "Something failed inside the service as it read this line. The log has it."
MOST_WAITING = 2_000  # jobs of one batch that wait or run at once
PORTION = 200  # lines that are stored in one transaction
PORTION_BYTES = 8 * 1024 * 1024  # of these lines; one alone may have more
ROUTE = "/v1/batches"


class Overtaken(Exception):
    """Raised if another process has stored these lines, or the batch was cancelled."""


@dataclass(slots=True)
class Portion:
    """The jobs of some lines, which are not stored yet."""

    lines: Sequence[Line]
    small: dict[str, list[NewJob]] = field(default_factory=lambda: defaultdict(list))  # by model: those without parts
    long: list[tuple[Submission, Job, list[Part]]] = field(default_factory=list)
    refused: list[tuple[job_rows.JobRow, Outcome]] = field(default_factory=list)
    refusal: UUID = field(default_factory=uuid4)  # the batch that the refused jobs end in
    terms: dict[str, Submission] = field(default_factory=dict)  # by model: one of its submissions
    messages: dict[tuple[str, str], JobMessage] = field(default_factory=dict)  # by what jobs share: model, parameters
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # by model: those that its answers depend on


class LineSubmitter:
    """The submitter of one batch's lines: it stores them as jobs, a portion at a time."""

    def __init__(self, batch: FileBatch, file: IO[bytes]) -> None:
        self._file = file
        self._endpoint = ENDPOINTS[batch.endpoint]
        self._bulk = Bulk(id=batch.id)
        self._most = PORTION

    def store_portion(self, batch: FileBatch) -> bool:
        """Store the next lines as jobs, and send them; return True if there may be room for more.

        `batch` is the row as it is now. Raises `InferenceError` if jobs are refused for now, `Overtaken`, and
        `FileNotFoundError` if lines of the file are missing.
        """
        room = MOST_WAITING - Job.objects.filter(bulk=batch.id, status__in=WAITING).count()
        lines = self._read(batch, max(0, min(room, self._most)))
        if not lines and room > 0:
            raise FileNotFoundError(batch.public_id)  # the storage has lost its end
        if not lines:
            return False
        try:
            self._store(batch, self._make_portion(batch, lines))
        except InvalidInput as error:  # there can never be room for so many jobs at once
            if len(lines) > 1:
                self._most = len(lines) // 2
                return True
            portion = Portion(lines)
            self._add_refused_job(batch, lines[0], error, portion)
            self._store(batch, portion)
        return len(lines) == self._most

    def _store(self, batch: FileBatch, portion: Portion) -> None:
        with contextlib.ExitStack() as places:
            for model, new in portion.small.items():
                places.enter_context(admission.reserve_places(portion.terms[model], [job.id for job in new]))
            _insert_portion(batch, portion)
        for model, new in portion.small.items():
            multi_job_store.send_messages(portion.terms[model].spec, new)

    def _read(self, batch: FileBatch, most: int) -> list[Line]:
        lines: list[Line] = []
        size = 0
        for line in itertools.islice(read_lines(self._file, index=batch.lines_read, start=batch.bytes_read), most):
            size += len(line.text)
            if lines and size > PORTION_BYTES:
                break
            lines.append(line)
        return lines

    def _make_portion(self, batch: FileBatch, lines: Sequence[Line]) -> Portion:
        portion = Portion(lines)
        for line in lines:
            body = codec.parse_json(line.text)["body"]
            try:
                submission, job, parts = self._make_line_job(batch, body)
            except InferenceError as error:
                if error.retryable or isinstance(error, UnknownModel):  # the model may come back
                    raise
                self._add_refused_job(batch, line, error, portion)
                continue
            except Exception as error:  # a bug, which must not keep the other lines from their answers
                if is_away(error):
                    raise
                logger.exception("batch=%s line=%d was not read", batch.public_id, line.index)
                self._add_refused_job(batch, line, ApiError(UNREADABLE, "internal"), portion)
                continue
            self._bind(batch, line, job)
            portion.options[job.model] = self._select_options(submission.spec)
            if parts:
                portion.long.append((submission, job, parts))
            else:
                portion.terms[job.model] = submission
                shared = job.model, digest_parameters(job.parameters)
                message = portion.messages.setdefault(shared, make_message(job))
                portion.small[job.model].append(
                    NewJob(job.id, job_rows.convert_job_to_row(job), message, job.size, job.length)
                )
        return portion

    def _make_line_job(self, batch: FileBatch, body: dict[str, Any]) -> tuple[Submission, Job, list[Part]]:
        """Return a line's submission, with its job and the parts of it. Raises `InferenceError`."""
        request = self._endpoint.read(body)
        submission = dataclasses.replace(
            request.submission,
            priority=Priority.LOW,
            owner=batch.owner,
            key_start=batch.key_start,
            request_id=batch.request_id,
            max_owned=(settings.API_KEY_MAX_LOW_QUEUED or None) if batch.owner else None,
            route=ROUTE,
            yields=True,
        )
        with request.translate_errors():
            return submission, *jobs.make_job_and_parts(submission)

    def _select_options(self, spec: ModelSpec) -> dict[str, Any]:
        return {name: spec.options[name] for name in self._endpoint.options if name in spec.options}

    def _add_refused_job(self, batch: FileBatch, line: Line, error: InferenceError, portion: Portion) -> None:
        """Make the job of a line whose body no model takes. It ends in the transaction that stores it."""
        body, now = codec.parse_json(line.text)["body"], clock.get_database_time()
        job = job_rows.make_unsaved_job(
            model=str(body.get("model", ""))[:100],
            owner=batch.owner,
            key_start=batch.key_start,
            request_id=batch.request_id,
            route=ROUTE,
            priority=Priority.LOW,
            created_at=now,
            inputs=body,
            status=Status.RUNNING,
            batch=portion.refusal,
        )
        self._bind(batch, line, job)
        outcome = Outcome(job.id, job.model, error_code=error.code, error_detail=error.message)
        portion.refused.append((job_rows.convert_job_to_row(job), outcome))

    def _bind(self, batch: FileBatch, line: Line, job: Job) -> None:
        job.bulk, job.bulk_index, job.expires_at = self._bulk, line.index, batch.expires_at


def _insert_portion(batch: FileBatch, portion: Portion) -> None:
    last, options = portion.lines[-1], (batch.model_options or {}) | portion.options
    here = FileBatch.objects.filter(pk=batch.pk, status=BatchStatus.IN_PROGRESS, lines_read=batch.lines_read)
    with transaction.atomic():
        if not here.update(lines_read=last.index + 1, bytes_read=last.end, model_options=options):
            raise Overtaken
        of_small = (job.row for new in portion.small.values() for job in new)
        for statement in job_rows.split_by_size([*(row for row, _ in portion.refused), *of_small]):
            writer.insert_group(statement)
        _end_refused(portion)
        for submission, job, parts in portion.long:
            split_jobs.store_whole(submission, job, parts)
    batch.lines_read, batch.bytes_read, batch.model_options = last.index + 1, last.end, options


def _end_refused(portion: Portion) -> None:
    by_model: dict[str, list[Outcome]] = defaultdict(list)
    for _, outcome in portion.refused:
        by_model[outcome.model].append(outcome)
    for outcomes in by_model.values():
        outcome_records.record_outcomes(portion.refusal, outcomes, batch_size=1)
