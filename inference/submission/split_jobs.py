"""Lists of more rows than a batch holds: one job for the client, the whole, with parts that run beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.conf import settings
from django.db import transaction

from inference.catalog import request_validation
from inference.catalog.sizes import lengths
from inference.catalog.sizes.lengths import Part
from inference.catalog.specs import ModelSpec
from inference.models import Job
from inference.store import job_rows
from inference.store.job_messages import make_message
from inference.submission import admission, multi_job_store
from inference.submission.submissions import Terms
from inference.telemetry import tracing
from inference.values.priority import Priority


def compute_max_accepted_inputs(spec: ModelSpec) -> int:
    """Return how many inputs one job may have."""
    return max(settings.MAX_BULK_INPUTS, spec.max_batch_size)


def compute_max_queued_inputs(spec: ModelSpec, priority: Priority = Priority.NORMAL) -> int:
    """Return how many inputs one job may have whose parts fit in the model's queue, beside the whole."""
    parts = admission.find_queue_limit(spec, priority) - 1
    return min(compute_max_accepted_inputs(spec), max(1, parts) * spec.max_batch_size)


def split_into_parts(spec: ModelSpec, inputs: Any, parameters: Mapping[str, Any], size: int) -> list[Part]:
    """Return the parts that a job of `size` rows runs in; an empty list if it runs as it is.

    Raises `InvalidInput` if an input has too many rows, or if the parameters are too large to be stored with each part.
    """
    is_long = size > spec.max_batch_size and lengths.is_input_list(spec, inputs)
    parts = lengths.split_list(spec, inputs, parameters) if is_long else []
    request_validation.check_row_count(spec, max((part.size for part in parts), default=size))
    if len(parts) < 2:
        return []
    multi_job_store.check_parameter_size(parameters, len(parts))
    return parts


def store_whole(terms: Terms, whole: Job, parts: Sequence[Part]) -> None:
    """Store the whole and its parts, and send the messages of the parts.

    The whole and each part take room in the queue. Raises `SubmissionError`, `StoreUnavailable`, and `IntegrityError`
    if the idempotency key is taken.
    """
    sent_at, whole.published_at = whole.published_at, None
    row = job_rows.convert_job_to_row(whole)
    traced = {"traceparent": tracing.make_part_traceparent(whole.traceparent, whole.id)} if tracing.on else {}
    of_all = job_rows.make_row_template(row)(
        whole=whole.id,
        parts=None,
        published_at=sent_at,
        idempotency_key=None,
        idempotency_digest="",
        bulk_id=None,
        bulk_index=None,
        **traced,
    )
    common = multi_job_store.SharedColumns(job_rows.make_row_template(of_all), make_message(whole))
    new = [common.make_job(part.size, part.length, inputs=part.inputs, place=part.place) for part in parts]
    statements = list(job_rows.split_by_size([row, *(job.row for job in new)]))
    with (
        admission.reserve_places(terms, [whole.id, *(job.id for job in new)]),
        multi_job_store.open_transaction(whole),
    ):
        multi_job_store.insert_rows_by_statement(statements)
    whole._state.adding = False
    # They are sent at once, unless the caller has a transaction of its own.
    transaction.on_commit(lambda: multi_job_store.send_messages(terms.spec, new))
