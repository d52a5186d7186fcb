"""Many jobs posted together: one transaction, one answer, progress as counts. At low priority unless told otherwise."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Count

from inference import budget, clock, json_field
from inference.catalog import lengths, validation
from inference.catalog.specs import ModelSpec
from inference.errors import BulkNotFound, InferenceError, InvalidInput
from inference.models import TERMINAL, WAITING, Bulk, Job, Priority, Status
from inference.store import rows
from inference.store.transitions import cancel_many
from inference.submission import admission, idempotency, writer
from inference.submission.jobs import spec_of

SHOWN_ERRORS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One input of a bulk, or why its line could not be read."""

    inputs: Any = None
    parameters: Any = None
    error: InferenceError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    counts: dict[str, int]  # by status
    errors: list[dict[str, Any]]  # the first refused inputs and failed jobs: index, job, code, detail

    @property
    def is_finished(self) -> bool:
        return all(status in TERMINAL or not count for status, count in self.counts.items())


def submit(
    *,
    model: str,
    items: Sequence[Item],
    priority: int = Priority.LOW,
    expires_in_s: float | None = None,
    owner: Any = None,
    max_owned: int | None = None,
    idempotency_key: str | None = None,
    request_id: str = "",
) -> Bulk:
    """Store and send a job for every input that the model takes; the others are listed on the bulk.

    Raises `SubmissionError` when nothing can be accepted.
    """
    spec = spec_of(model)
    check_size(len(items))
    _check_parameters(items)
    bulk = Bulk(model=model, total=len(items), owner=owner, request_id=request_id)
    if idempotency_key is not None:
        bulk.idempotency_key = idempotency.owned(owner, idempotency_key)
        bulk.idempotency_digest = idempotency.digest(model, _bodies(items), priority, expires_in_s)
        if known := idempotency.known(bulk):
            return known
    jobs = list(_jobs(spec, bulk, items, priority, expires_in_s))
    if not jobs:
        raise InvalidInput(f"None of {len(items)} inputs can be accepted. The first: {bulk.rejected[0]['detail']}")
    with admission.room(spec, jobs, max_owned):
        return _store(bulk, jobs)


def fetch(bulk_id: UUID) -> Bulk:
    """Raises `BulkNotFound`."""
    if bulk := Bulk.objects.filter(pk=bulk_id).first():
        return bulk
    raise BulkNotFound(f"There is no bulk {bulk_id}.")


def job_ids(bulk: Bulk) -> Iterator[tuple[int | None, UUID]]:
    """(index, id) of every job, in the order of the inputs."""
    return bulk.job_set.order_by("bulk_index").values_list("bulk_index", "pk").iterator()


def progress(bulk: Bulk) -> Progress:
    counts = dict.fromkeys(Status.values, 0) | dict(
        bulk.job_set.order_by().values_list("status").annotate(Count("pk"))
    )  # fmt: skip
    failed = bulk.job_set.filter(status=Status.FAILED).order_by("bulk_index")[:SHOWN_ERRORS]
    errors = bulk.rejected + [
        {"index": job.bulk_index, "job": job.pk, "code": job.error_code, "detail": job.public_detail}
        for job in failed.only("bulk_index", "error_code", "error_detail")
    ]
    return Progress(counts=counts, errors=sorted(errors, key=lambda error: error["index"])[:SHOWN_ERRORS])


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


def _bodies(items: Sequence[Item]) -> list[Any]:
    return [[item.inputs, item.parameters, item.error is None] for item in items]


def _jobs(
    spec: ModelSpec, bulk: Bulk, items: Iterable[Item], priority: int, expires_in_s: float | None
) -> Iterator[Job]:
    now = clock.now()
    expires_at = None if expires_in_s is None else now + datetime.timedelta(seconds=expires_in_s)
    checked: dict[int, dict[str, Any]] = {}
    for index, item in enumerate(items):
        try:
            parameters = _validated(spec, item, checked)
            size, length = lengths.measure(spec, item.inputs, parameters)
            validation.check_rows(spec, size)
        except InferenceError as error:
            bulk.rejected.append({"index": index, "job": None, "code": error.code, "detail": error.message})
            continue
        yield Job(
            model=spec.name, inputs=item.inputs, parameters=parameters, size=size, length=length, priority=priority,
            created_at=now, published_at=now, expires_at=expires_at, owner=bulk.owner, request_id=bulk.request_id,
            bulk=bulk, bulk_index=index,
        )  # fmt: skip


def _validated(spec: ModelSpec, item: Item, checked: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The parameters of one input. Those that many share are checked once."""
    if item.error:
        raise item.error
    validation.validate_inputs(spec, item.inputs)
    shared = id(item.parameters)
    if shared not in checked:
        checked[shared] = validation.validate_parameters(spec, item.parameters or {})
    return checked[shared]


def _store(bulk: Bulk, jobs: Sequence[Job]) -> Bulk:
    groups = list(rows.statements(map(rows.prepare, jobs)))  # before the transaction, which may keep all writers out
    with contextlib.ExitStack() as committed:
        try:
            with transaction.atomic():
                bulk.save(force_insert=True)
                writer.insert(groups[0])
                with budget.uncounted():
                    for group in groups[1:]:
                        writer.insert(group)
                committed.enter_context(writer.telling(bulk))
        except IntegrityError as error:
            return idempotency.explain(bulk, error)
        for chunk in rows.chunks(jobs):
            writer.send(chunk)
    return bulk
