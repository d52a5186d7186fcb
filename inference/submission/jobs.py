"""One job: submitted, waited for, cancelled.

job = jobs.submit(Submission(spec=spec_of("embeddings"), inputs="some text"))
job = jobs.wait(job.id, timeout_s=10)
"""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

from django.db import IntegrityError

from inference import budget
from inference.catalog import lengths, validation
from inference.catalog.lookup import spec_of
from inference.errors import JobNotFound, NoWorker
from inference.failures import is_away
from inference.models import Job
from inference.status import workers
from inference.store import transitions
from inference.store.rows import Changes
from inference.submission import admission, idempotency
from inference.submission.submissions import Submission
from inference.submission.writer import PATIENCE_S, telling, writer
from inference.waiting import finished
from inference.webhooks import delivery

logger = logging.getLogger(__name__)


def submit(submission: Submission) -> Job:
    """Record one job and enqueue it. The row is committed when this returns.

    Raises `SubmissionError`, or `StoreUnavailable`.
    """
    return _accept(submission, _new_job(submission))


def run(submission: Submission, *, timeout_s: float) -> Job:
    """`submit` and `wait` in one, without a moment in between: the answer cannot be missed.

    Raises `NoWorker` before anything is stored when nobody serves the model.
    """
    job = _new_job(submission)
    if submission.webhook or submission.idempotency_key is not None:
        return wait_for(_accept(submission, job, needs_worker=True), timeout_s=timeout_s)
    _require_worker(submission.spec.name)
    try:
        return _store_and_wait(submission, job, timeout_s)
    except IntegrityError as error:
        return wait_for(idempotency.explain(job, error), timeout_s=timeout_s)


def fetch(job_id: UUID, *, owner: Any = None) -> Job:
    """Raises `JobNotFound`, also for another owner's job. `owner=None` sees all."""
    jobs = Job.objects.filter(pk=job_id) if owner is None else Job.objects.filter(pk=job_id, owner=owner)
    if job := jobs.order_by().defer("inputs").first():
        return job
    raise JobNotFound(f"There is no job {job_id}.")


def wait(job_id: UUID, *, timeout_s: float, owner: Any = None) -> Job:
    """The job once it is finished, or as it is after `timeout_s`. Holds no database connection meanwhile."""
    with finished.listener.expect(job_id) as waiter:
        job = fetch(job_id, owner=owner)
        if job.is_finished or timeout_s <= 0:
            return job
        changes = waiter.wait(timeout_s)
    return _changed(job, changes) if changes else fetch(job_id, owner=owner)


def wait_for(job: Job, *, timeout_s: float) -> Job:
    """As `wait`, for a job that is stored for certain: as it is known here when the database is away."""
    try:
        return wait(job.id, timeout_s=timeout_s)
    except Exception as error:
        if not is_away(error):
            raise
        logger.warning("job=%s is stored, and cannot be looked at: %s", job.id, error)
        return job


def cancel(job_id: UUID, *, owner: Any = None) -> Job:
    """Cancel a queued or running job; a finished one is left as it is. A running job's outcome is dropped."""
    fetch(job_id, owner=owner)
    transitions.cancel(job_id)
    return fetch(job_id)


def again(old: Job) -> Submission:
    """The same inputs for a new job of the same owner: terminal states never change. Raises `UnknownModel`."""
    return Submission(
        spec=spec_of(old.model), inputs=old.inputs, parameters=old.parameters, priority=old.priority, owner=old.owner,
        request_id=old.request_id,
    )  # fmt: skip


def _new_job(submission: Submission) -> Job:
    """A job that the model takes, not stored yet."""
    spec, inputs = submission.spec, submission.inputs
    if submission.webhook:
        delivery.check(submission.webhook)
    parameters = validation.validate(spec, inputs, submission.parameters)
    size, length = lengths.measure(spec, inputs, parameters)
    job = submission.job(inputs=inputs, parameters=parameters, size=size, length=length)
    if submission.idempotency_key is not None:
        job.idempotency_key = idempotency.owned(submission.owner, submission.idempotency_key)
        job.idempotency_digest = idempotency.digest(
            spec.name, inputs, submission.parameters, submission.priority, submission.expires_in_s, submission.webhook
        )
    return job


def _accept(submission: Submission, job: Job, *, needs_worker: bool = False) -> Job:
    """The job, stored and sent, or the one of an earlier request with its key."""
    accepted = idempotency.once(job, lambda: _store(submission, job, needs_worker=needs_worker))
    if submission.webhook:
        with telling(accepted):
            delivery.register(accepted, submission.webhook)
    return accepted


def _store(submission: Submission, job: Job, *, needs_worker: bool) -> Job:
    if needs_worker:
        _require_worker(submission.spec.name)
    try:
        with admission.room(submission, [job.id]):
            writer.accept(job)
    except IntegrityError as error:
        return idempotency.explain(job, error)
    return job


def _store_and_wait(submission: Submission, job: Job, timeout_s: float) -> Job:
    """One wait, not one for the commit and one for the end: a finished job was committed."""
    with finished.listener.expect(job.id) as waiter:
        with admission.room(submission, [job.id]):
            patience_s = min(budget.left_s(), PATIENCE_S)
            first_s = min(timeout_s, patience_s)
            offered = writer.offer(job, waiter.fail)
            changes = waiter.wait(first_s)
            if not changes:
                writer.confirm(offered, patience_s - first_s)
        changes = changes or waiter.wait(timeout_s - first_s)
    return _changed(job, changes) if changes else wait_for(job, timeout_s=0.0)


def _changed(job: Job, changes: Changes) -> Job:
    vars(job).update(changes)
    return job


def _require_worker(model: str) -> None:
    """Raises `NoWorker`."""
    if not workers.serving(model):
        raise NoWorker(
            f"No worker serves {model!r} now. Jobs posted to /v1/jobs are kept until one does.", retry_after_s=5
        )
