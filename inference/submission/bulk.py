"""Many jobs posted together: one transaction, one answer, progress as counts. At low priority unless told otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Count

from inference import budget, json_field
from inference.broker.messages import JobMessage
from inference.catalog import lengths, validation
from inference.catalog.specs import ModelSpec, parameters_digest
from inference.errors import BulkNotFound, InferenceError, InvalidInput
from inference.ids import new_job_id
from inference.models import TERMINAL, WAITING, Bulk, Job, Status
from inference.store import rows
from inference.store.transitions import cancel_many
from inference.submission import admission, idempotency, writer
from inference.submission.submissions import BulkSubmission, Item

SHOWN_ERRORS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    counts: dict[str, int]  # by status
    errors: list[dict[str, Any]]  # the first refused inputs and failed jobs: index, job, code, detail

    @property
    def is_finished(self) -> bool:
        return all(status in TERMINAL or not count for status, count in self.counts.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    bulk: Bulk
    progress: Progress
    jobs: Sequence[tuple[int | None, UUID]]  # (index, id) of every job, in the order of the inputs


def submit(submission: BulkSubmission) -> Accepted:
    """Store and send a job for every input that the model takes; the others are listed on the bulk.

    Raises `SubmissionError` when nothing can be accepted, or `StoreUnavailable`.
    """
    bulk = _new_bulk(submission)
    jobs: list[_NewJob] = []

    def store() -> Bulk:
        jobs.extend(_jobs(submission, bulk))
        try:
            with admission.room(submission, [job.id for job in jobs]):
                _store(bulk, jobs)
        except IntegrityError as error:
            return idempotency.explain(bulk, error)
        return bulk

    stored = idempotency.once(bulk, store)
    if stored is not bulk:
        return _accepted_before(stored)
    for chunk in rows.chunks(jobs):
        writer.send([job.message for job in chunk])
    return _accepted_now(bulk, jobs)


def fetch(bulk_id: UUID) -> Bulk:
    """Raises `BulkNotFound`."""
    if bulk := Bulk.objects.filter(pk=bulk_id).first():
        return bulk
    raise BulkNotFound(f"There is no bulk {bulk_id}.")


def progress(bulk: Bulk) -> Progress:
    counts = dict(bulk.job_set.order_by().values_list("status").annotate(Count("pk")))
    failed = bulk.job_set.filter(status=Status.FAILED).order_by("bulk_index")[:SHOWN_ERRORS]
    errors = bulk.rejected + [
        {"index": job.bulk_index, "job": job.pk, "code": job.error_code, "detail": job.public_detail}
        for job in failed.only("bulk_index", "error_code", "error_detail")
    ]
    return _progress(counts, errors)


def _progress(counts: dict[str, int], errors: list[dict[str, Any]]) -> Progress:
    counts = dict.fromkeys(Status.values, 0) | counts
    return Progress(counts=counts, errors=sorted(errors, key=lambda error: error["index"])[:SHOWN_ERRORS])


def _accepted_before(known: Bulk) -> Accepted:
    """As it is now. Raises `StoreUnavailable`."""
    with writer.telling(known):
        jobs = list(known.job_set.order_by("bulk_index").values_list("bulk_index", "pk").iterator())
        return Accepted(bulk=known, progress=progress(known), jobs=jobs)


def _accepted_now(bulk: Bulk, jobs: Sequence[_NewJob]) -> Accepted:
    """As it was stored: that it was accepted is said even when nothing can be read any more."""
    accepted = [(job.row.values["bulk_index"], job.id) for job in jobs]
    return Accepted(bulk=bulk, progress=_progress({Status.QUEUED: len(jobs)}, bulk.rejected), jobs=accepted)


def cancel(bulk: Bulk) -> int:
    """Cancel what is not finished. Returns how many jobs."""
    waiting = bulk.job_set.filter(status__in=WAITING).order_by()
    chunks = rows.chunks(waiting.values_list("pk", flat=True))
    cancelled = cancel_many(next(chunks, [])).total()
    with budget.uncounted():
        return cancelled + sum(cancel_many(ids).total() for ids in chunks)


def check_size(inputs: int) -> None:
    """Raises `InvalidInput`."""
    if not 1 <= inputs <= settings.MAX_BULK_INPUTS:
        raise InvalidInput(f"inputs: must be from 1 to {settings.MAX_BULK_INPUTS} inputs.")


def _check_parameters(items: Sequence[Item]) -> None:
    """Parameters that are given once are stored with each job. Raises `InvalidInput`."""
    given = items[0].parameters
    if not given or any(item.parameters is not given for item in items):
        return
    most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE // len(items)
    if len(json_field.dumps(given)) > most:
        raise InvalidInput(
            f"parameters: of {len(items)} inputs at most {most} bytes, since each job keeps them. Send fewer at once.",
            field="parameters",
        )


def _new_bulk(submission: BulkSubmission) -> Bulk:
    """Not stored yet."""
    items, model, owner = submission.items, submission.spec.name, submission.owner
    check_size(len(items))
    _check_parameters(items)
    bulk = Bulk(model=model, total=len(items), owner=owner, request_id=submission.request_id)
    if submission.idempotency_key is not None:
        bodies = [[item.inputs, item.parameters, item.error is None] for item in items]
        bulk.idempotency_key = idempotency.owned(owner, submission.idempotency_key)
        bulk.idempotency_digest = idempotency.digest(model, bodies, submission.priority, submission.expires_in_s)
    return bulk


def _jobs(submission: BulkSubmission, bulk: Bulk) -> Iterator[_NewJob]:
    """Raises `InvalidInput` when no input can be accepted."""
    spec = submission.spec
    kinds = _Kinds(spec, submission.job(bulk=bulk))
    for index, item in enumerate(submission.items):
        try:
            if item.error:
                raise item.error
            validation.validate_inputs(spec, item.inputs)
            kind = kinds.of(item.parameters or {})
            size, length = lengths.measure(spec, item.inputs, kind.parameters)
            validation.check_rows(spec, size)
        except InferenceError as error:
            bulk.rejected.append({"index": index, "job": None, "code": error.code, "detail": error.message})
        else:
            yield kind.job(index, item.inputs, size, length)
    if len(bulk.rejected) == bulk.total:
        raise InvalidInput(f"None of {bulk.total} inputs can be accepted. The first: {bulk.rejected[0]['detail']}")


@dataclass(frozen=True, slots=True)
class _NewJob:
    """What is stored and sent of a job, without a `Job`: that alone would cost more."""

    id: UUID
    row: rows.Row
    message: JobMessage


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the jobs with the same parameters have in common."""

    parameters: dict[str, Any]
    group: str
    row: rows.Row
    common: JobMessage

    def job(self, index: int, inputs: Any, size: int, length: int) -> _NewJob:
        job_id = new_job_id()
        row = rows.like(self.row, id=job_id, inputs=inputs, size=size, length=length, bulk_index=index)
        message = replace(self.common, job_id=str(job_id), group=self.group, size=size, length=length)
        return _NewJob(job_id, row, message)


class _Kinds:
    """Of a bulk: each is checked and prepared once, however many lines spell it out."""

    def __init__(self, spec: ModelSpec, common: Job) -> None:
        self._spec = spec
        self._row, self._message = rows.prepare(common), writer.message_of(common)
        self._known: dict[str, _Kind] = {}

    def of(self, given: dict[str, Any]) -> _Kind:
        """Raises `InvalidInput`."""
        spelt = json_field.dumps(given)
        if spelt not in self._known:
            self._known[spelt] = self._new(validation.validate_parameters(self._spec, given))
        return self._known[spelt]

    def _new(self, parameters: dict[str, Any]) -> _Kind:
        row = rows.like(self._row, parameters=parameters)
        return _Kind(parameters, parameters_digest(parameters), row, self._message)


def _store(bulk: Bulk, jobs: Sequence[_NewJob]) -> None:
    """Raises `IntegrityError` for a key that is taken, `StoreUnavailable` when it may have been stored."""
    groups = list(rows.statements(job.row for job in jobs))
    with contextlib.ExitStack() as committed, transaction.atomic():
        bulk.save(force_insert=True)
        writer.insert(groups[0])
        with budget.uncounted():
            for group in groups[1:]:
                writer.insert(group)
        committed.enter_context(writer.telling(bulk))
