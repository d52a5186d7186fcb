"""Functions that submit, wait for and cancel one job.

job = jobs.submit(Submission(spec=get_spec("embeddings"), inputs="some text"))
job = jobs.wait(job.id, timeout_s=10)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from inference import budget, process_resources
from inference.catalog import request_validation
from inference.catalog.lookup import get_spec
from inference.catalog.sizes import lengths
from inference.catalog.sizes.lengths import Part
from inference.connection_retries import is_away
from inference.errors import JobInUse, JobNotFound, NoWorker
from inference.models import TERMINAL, Job
from inference.status import readiness, workers
from inference.store import job_rows, transitions
from inference.store.job_rows import Changes
from inference.submission import admission, idempotency, split_jobs
from inference.submission.submissions import Submission
from inference.telemetry import logs
from inference.web_process.writer import PATIENCE_S, report_perhaps_stored_row
from inference.webhooks import delivery

logger = logging.getLogger(__name__)


def submit(submission: Submission, *, needs_worker: bool = False) -> Job:
    """Record one job and enqueue it; its row is committed when this returns.

    Raises `SubmissionError` or `StoreUnavailable`. With `needs_worker`, raises `NoWorker` before anything is stored if
    no worker serves the model.
    """
    return _accept(submission, *make_job_and_parts(submission), needs_worker=needs_worker)


def run(submission: Submission, *, timeout_s: float) -> Job:
    """Submit a job and wait for it, as `submit` and `wait` do, with no moment in between.

    The job's end can therefore not be missed. Raises `NoWorker` before anything is stored if no worker serves the
    model.
    """
    job, parts = make_job_and_parts(submission)
    if parts or submission.webhook or submission.idempotency_key is not None:
        return try_to_wait_for_job(_accept(submission, job, parts, needs_worker=True), timeout_s=timeout_s)
    _require_worker(submission.spec.name)
    try:
        return _store_and_wait(submission, job, timeout_s)
    except IntegrityError as error:
        return try_to_wait_for_job(idempotency.resolve_conflict(job, error), timeout_s=timeout_s)


def fetch(job_id: UUID) -> Job:
    """Return a job without its inputs; raise `JobNotFound` if there is none, or if it is a part."""
    if job := Job.objects.filter(pk=job_id, whole=None).order_by().defer("inputs").first():
        return job
    raise JobNotFound(f"There is no job {job_id}.")


def wait(job_id: UUID, *, timeout_s: float) -> Job:
    """Return the job once it is finished, or as it is after `timeout_s`.

    Holds no database connection while it waits. Raises `JobNotFound`.
    """
    with process_resources.current.listener.expect_finish(job_id) as waiter:
        job = fetch(job_id)
        if job.is_finished or timeout_s <= 0:
            return job
        changes = waiter.wait(timeout_s)
        budget.renew_budget()
    return _apply_job_changes(job, changes) if changes else fetch(job_id)


def wait_for_any(ids: Collection[UUID], among: QuerySet[Job], *, timeout_s: float) -> tuple[list[UUID], list[UUID]]:
    """Return those of `ids` that are finished, and those that are not `among` the jobs.

    Returns as soon as one is finished, or after `timeout_s`. Waits for none if any of `ids` is not `among` the jobs.
    """
    with process_resources.current.listener.expect_any_finish(ids) as hints:
        statuses = dict(among.filter(pk__in=ids).order_by().values_list("pk", "status"))
        missing = [job_id for job_id in ids if job_id not in statuses]
        ended = [job_id for job_id, status in statuses.items() if status in TERMINAL]
        give_up_at = time.monotonic() + (0.0 if missing else timeout_s)
        while not ended and (candidates := hints.wait(max(0.0, give_up_at - time.monotonic()))):
            budget.renew_budget()
            ended = list(among.filter(pk__in=candidates, status__in=TERMINAL).order_by().values_list("pk", flat=True))
    return ended, missing


def try_to_wait_for_job(job: Job, *, timeout_s: float) -> Job:
    """Wait as `wait` does for a job that is certainly stored; return it as it is here if the database is away."""
    try:
        return wait(job.id, timeout_s=timeout_s)
    except Exception as error:
        if not is_away(error):
            raise
        logger.warning("job=%s is stored, and cannot be looked at: %s", job.id, error)
        return job


def cancel(job_id: UUID) -> Job:
    """Cancel a queued or running job; leave a finished one as it is.

    The outcome of a running job is dropped. Returns the job as it is then. Raises `JobNotFound`.
    """
    if fetch(job_id).parts:
        transitions.cancel_jobs_with_parts([job_id])
    else:
        transitions.cancel_job(job_id)
    return fetch(job_id)


def delete(job: Job) -> None:
    """Delete a finished job with all that it holds: inputs, output, error, and a webhook that is not delivered yet.

    Raises `JobNotFound`, and `JobInUse` for a job that is not finished or that a bulk counts.
    """
    if job.bulk_id:
        raise JobInUse(f"The job {job.id} is one of bulk {job.bulk_id}, and is removed with it.")
    with transaction.atomic():
        is_removed = transitions.delete_ended_jobs([job.id])
        if is_removed and job.parts:
            transitions.delete_parts(job.id)
    if not is_removed:
        status, cancel = fetch(job.id).status, f"POST /v1/jobs/{job.id}/cancel"
        raise JobInUse(f"The job {job.id} is {status}. Delete it once it has ended: {cancel} ends it.")


def read_inputs(job: Job) -> Any:
    """Return the inputs of a job, also of one whose parts hold them."""
    return job_rows.read_inputs_of_whole(job.pk) if job.parts else job.inputs


def make_resubmission(old: Job, *, alone: bool = False) -> Submission:
    """Return a submission with the same inputs for a new job of the same owner.

    A new job is needed, since terminal states never change. Raises `UnknownModel`.
    """
    return Submission(
        spec=get_spec(old.model),
        inputs=read_inputs(old),
        parameters=old.parameters,
        priority=old.priority,
        owner=old.owner,
        request_id=old.request_id,
        alone=alone,
        retry_of=old.pk,
    )


def make_job_and_parts(submission: Submission) -> tuple[Job, list[Part]]:
    """Make a job that the model takes, which is not stored yet, and its parts if it is too long for a batch.

    Raises `SubmissionError`.
    """
    spec, inputs = submission.spec, submission.inputs
    if submission.webhook:
        delivery.check_url(submission.webhook)
    parameters = request_validation.validate_request(
        spec, inputs, submission.parameters, most=split_jobs.compute_max_accepted_inputs(spec)
    )
    size, length = lengths.measure_inputs(spec, inputs, parameters)
    parts = split_jobs.split_into_parts(spec, inputs, parameters, size)
    job = submission.make_job(
        inputs=[] if parts else inputs, parameters=parameters, size=size, length=length, parts=len(parts) or None
    )
    logs.bind_more_ids(job=job.id, model=spec.name)
    if submission.idempotency_key is not None:
        job.idempotency_key = idempotency.scope_key(submission.owner, submission.idempotency_key)
        compared = (inputs, submission.parameters, submission.priority, submission.expires_in_s, submission.webhook)
        job.idempotency_digest = idempotency.digest_body(spec.name, *compared, *filter(None, [submission.retry_of]))
    return job, parts


def _accept(submission: Submission, job: Job, parts: Sequence[Part], *, needs_worker: bool = False) -> Job:
    """Store and send the job, and return it, or the job of an earlier request with its idempotency key."""
    accepted = idempotency.store_once(job, lambda: _store(submission, job, parts, needs_worker=needs_worker))
    if submission.webhook:
        with report_perhaps_stored_row(accepted):
            delivery.register_webhook(accepted, submission.webhook)
    return accepted


def _store(submission: Submission, job: Job, parts: Sequence[Part], *, needs_worker: bool) -> Job:
    if needs_worker:
        _require_worker(submission.spec.name)
    try:
        if parts:
            split_jobs.store_whole(submission, job, parts)
            return job
        with admission.reserve_places(submission, [job.id]):
            process_resources.current.writer.write_job(job)
    except IntegrityError as error:
        return idempotency.resolve_conflict(job, error)
    return job


def _store_and_wait(submission: Submission, job: Job, timeout_s: float) -> Job:
    """Store a job and wait for its end.

    There is one wait, not one for the commit and one for the end: a finished job was committed.
    """
    with process_resources.current.listener.expect_finish(job.id) as waiter:
        with admission.reserve_places(submission, [job.id]):
            patience_s = min(budget.get_remaining_s(), PATIENCE_S)
            first_s = min(timeout_s, patience_s)
            written = process_resources.current.writer.enqueue_job(job, waiter.fail)
            changes = waiter.wait(first_s)
            if not changes:
                process_resources.current.writer.wait_for_write(written, patience_s - first_s)
        changes = changes or waiter.wait(timeout_s - first_s)
        if timeout_s > first_s:
            budget.renew_budget()
    return _apply_job_changes(job, changes) if changes else try_to_wait_for_job(job, timeout_s=0.0)


def _apply_job_changes(job: Job, changes: Changes) -> Job:
    job_rows.set_job_attributes(job, changes)
    return job


def _require_worker(model: str) -> None:
    if not workers.count_serving_workers(model):
        message, raised = readiness.explain_unserved_model(model)
        raise NoWorker(f"{message} Jobs posted to /v1/jobs are kept until one does.", model=model, raised=raised)
