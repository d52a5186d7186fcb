"""Bulks: many jobs that are posted together, stored in one transaction and answered at once.

Their progress is reported as counts. Their priority is low unless another one is given.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError
from django.db.models import Count

from inference import budget
from inference.catalog import request_validation
from inference.catalog.sizes import lengths
from inference.catalog.specs import ModelSpec, digest_parameters
from inference.errors import BulkNotFound, InferenceError, InvalidInput, NoneAccepted
from inference.fields import json_field
from inference.models import TERMINAL, WAITING, Bulk, Job, Status
from inference.store import job_rows
from inference.store.job_messages import make_message
from inference.store.transitions import cancel_jobs_with_parts
from inference.submission import admission, idempotency, jobs, multi_job_store
from inference.submission.multi_job_store import NewJob, SharedColumns
from inference.submission.submissions import BulkItem, BulkSubmission
from inference.telemetry import logs
from inference.values.error_phrases import cut_text
from inference.web_process import writer

SHOWN_ERRORS = 100
SHORT_DETAIL = 60  # characters of each further one: an answer may not be longer than the request that it repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkProgress:
    counts: dict[str, int]  # by status
    errors: list[dict[str, Any]]  # the first refused inputs and failed jobs: index, job, code, detail

    @property
    def is_finished(self) -> bool:
        return all(status in TERMINAL or not count for status, count in self.counts.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    bulk: Bulk
    progress: BulkProgress
    jobs: Sequence[tuple[int | None, UUID]]  # (index, id) of every job, in the order of the inputs


def submit(submission: BulkSubmission) -> Accepted:
    """Store and send a job for every input that the model takes; the others are listed on the bulk.

    Raises `SubmissionError` when nothing can be accepted, or `StoreUnavailable`.
    """
    bulk = _make_bulk(submission)
    new: list[NewJob] = []

    def store() -> Bulk:
        new.extend(_make_jobs(submission, bulk))
        try:
            with admission.reserve_places(submission, [job.id for job in new]):
                _store(bulk, new)
        except IntegrityError as error:
            return idempotency.resolve_conflict(bulk, error)
        return bulk

    stored = idempotency.store_once(bulk, store)
    if stored is not bulk:
        return _read_accepted(stored)
    multi_job_store.send_messages(submission.spec, new)
    return _make_accepted(bulk, new)


def fetch(bulk_id: UUID) -> Bulk:
    """Return a bulk; raise `BulkNotFound` if there is no such bulk."""
    if bulk := Bulk.objects.filter(pk=bulk_id).first():
        return bulk
    raise BulkNotFound(f"There is no bulk {bulk_id}.")


def wait(bulk: Bulk, *, timeout_s: float) -> None:
    """Wait until all jobs of a bulk are finished, or for `timeout_s`.

    It waits for one job that is not finished, then for another one.
    """
    give_up_at = time.monotonic() + timeout_s
    unfinished = bulk.job_set.filter(status__in=WAITING).order_by("-pk").values_list("pk", flat=True)
    while (left_s := give_up_at - time.monotonic()) > 0 and (job_id := unfinished.first()):
        jobs.wait(job_id, timeout_s=left_s)


def read_progress(bulk: Bulk) -> BulkProgress:
    counts = dict(bulk.job_set.order_by().values_list("status").annotate(Count("pk")))
    failed = bulk.job_set.filter(status=Status.FAILED).order_by("bulk_index")[:SHOWN_ERRORS]
    errors = bulk.rejected + [
        {"index": job.bulk_index, "job": job.pk, "code": job.error_code, "detail": job.public_detail}
        for job in failed.only("bulk_index", "error_code", "error_detail", "error_raised")
    ]
    return _make_progress(counts, errors)


def _make_progress(counts: dict[str, int], errors: list[dict[str, Any]]) -> BulkProgress:
    counts = dict.fromkeys(Status.values, 0) | counts
    return BulkProgress(counts=counts, errors=sorted(errors, key=lambda error: error["index"])[:SHOWN_ERRORS])


def _read_accepted(known: Bulk) -> Accepted:
    """Return the answer for a bulk that an earlier request stored, as it is now.

    Raises `StoreUnavailable` if the database is away.
    """
    with writer.report_perhaps_stored_row(known):
        found = list(known.job_set.order_by("bulk_index").values_list("bulk_index", "pk"))
        return Accepted(bulk=known, progress=read_progress(known), jobs=found)


def _make_accepted(bulk: Bulk, new: Sequence[NewJob]) -> Accepted:
    """Return the answer for a bulk as it was stored.

    Nothing is read for it: the client is to have this answer even if the database is away by now.
    """
    accepted = [(job.row.values["bulk_index"], job.id) for job in new]
    return Accepted(bulk=bulk, progress=_make_progress({Status.QUEUED: len(new)}, bulk.rejected), jobs=accepted)


def cancel_bulk(bulk: Bulk) -> None:
    """Cancel the jobs of a bulk that are not finished."""
    waiting = bulk.job_set.filter(status__in=WAITING).order_by()
    chunks = job_rows.split_into_chunks(waiting.values_list("pk", flat=True))
    cancel_jobs_with_parts(next(chunks, []))
    with budget.lift_budget():
        for ids in chunks:
            cancel_jobs_with_parts(ids)


def check_size(inputs: int) -> None:
    """Raise `InvalidInput` if a bulk may not have so many inputs."""
    if not 1 <= inputs <= settings.MAX_BULK_INPUTS:
        raise InvalidInput(f"inputs: must be from 1 to {settings.MAX_BULK_INPUTS} inputs.")


def _check_parameters(items: Sequence[BulkItem]) -> None:
    """Raise `InvalidInput` if parameters that all items share are too large to be stored with each job."""
    given = items[0].parameters
    if given and all(item.parameters is given for item in items):
        multi_job_store.check_parameter_size(given, len(items))


def _make_bulk(submission: BulkSubmission) -> Bulk:
    """Make the bulk of a submission, which is not stored yet; raise `InvalidInput` if its size is not allowed."""
    items, model, owner = submission.items, submission.spec.name, submission.owner
    check_size(len(items))
    _check_parameters(items)
    bulk = Bulk(model=model, total=len(items), owner=owner, request_id=submission.request_id)
    logs.bind_more_ids(bulk=bulk.id, model=model)
    if submission.idempotency_key is not None:
        bodies = [[item.inputs, item.parameters, item.error is None] for item in items]
        bulk.idempotency_key = idempotency.scope_key(owner, submission.idempotency_key)
        bulk.idempotency_digest = idempotency.digest_body(model, bodies, submission.priority, submission.expires_in_s)
    return bulk


def _make_jobs(submission: BulkSubmission, bulk: Bulk) -> Iterator[NewJob]:
    """Make a job for each input that the model takes, and list the others in `bulk.rejected`.

    Raises `InvalidInput` if no input can be accepted.
    """
    spec = submission.spec
    kinds = _Kinds(spec, submission.make_job(bulk=bulk))
    for index, item in enumerate(submission.items):
        try:
            if item.error:
                raise item.error
            request_validation.validate_inputs(spec, item.inputs)
            kind = kinds.find_kind(item.parameters or {})
            size, length = lengths.measure_inputs(spec, item.inputs, kind.parameters)
            request_validation.check_row_count(spec, size)
        except InferenceError as error:
            is_shown = len(bulk.rejected) < SHOWN_ERRORS
            detail = error.message if is_shown else cut_text(error.message, SHORT_DETAIL)
            bulk.rejected.append({"index": index, "job": None, "code": error.code, "detail": detail})
        else:
            yield kind.common.make_job(size, length, inputs=item.inputs, bulk_index=index)
    if len(bulk.rejected) == bulk.total:
        raise NoneAccepted(bulk.rejected)


@dataclass(frozen=True, slots=True)
class _Kind:
    """The jobs of a bulk that have the same parameters."""

    parameters: dict[str, Any]
    common: SharedColumns


class _Kinds:
    """The sets of parameters in a bulk: each is checked and prepared once, however many lines repeat it."""

    def __init__(self, spec: ModelSpec, common: Job) -> None:
        self._spec = spec
        self._like = job_rows.make_row_template(job_rows.convert_job_to_row(common))
        self._message = make_message(common)
        self._known: dict[str, _Kind] = {}

    def find_kind(self, given: dict[str, Any]) -> _Kind:
        """Return the kind of jobs with these parameters; raise `InvalidInput` if the model does not take them."""
        spelt = json_field.dumps(given)
        if spelt not in self._known:
            self._known[spelt] = self._make_kind(request_validation.validate_parameters(self._spec, given))
        return self._known[spelt]

    def _make_kind(self, parameters: dict[str, Any]) -> _Kind:
        like = job_rows.make_row_template(self._like(parameters=parameters))
        return _Kind(parameters, SharedColumns(like, replace(self._message, group=digest_parameters(parameters))))


def _store(bulk: Bulk, new: Sequence[NewJob]) -> None:
    """Store a bulk and its jobs.

    Raises `IntegrityError` if the idempotency key is taken, and `StoreUnavailable` if the bulk may have been stored.
    """
    statements = list(job_rows.split_by_size(job.row for job in new))
    with multi_job_store.open_transaction(bulk):
        bulk.save(force_insert=True)
        multi_job_store.insert_rows_by_statement(statements)
