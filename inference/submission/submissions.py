"""The requests of callers for jobs, one by one or many together.

A submission is checked and stored, and never changes.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from inference import clock
from inference.catalog.specs import ModelSpec
from inference.errors import InferenceError
from inference.models import Job
from inference.store import job_rows
from inference.telemetry import tracing
from inference.values.priority import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms that all jobs of a submission share.

    `max_owned` is how many jobs of `owner` may wait at once. If the owner has used the `idempotency_key` before, the
    answer is what was stored then.
    """

    spec: ModelSpec
    priority: int = Priority.NORMAL
    expires_in_s: float | None = None
    owner: Any = None
    max_owned: int | None = None
    key_start: str | None = None  # the first characters of the API key that the request came with
    route: str | None = None  # the address that the request came by, such as /v1/models/NAME
    idempotency_key: str | None = None
    request_id: str = ""
    alone: bool = False  # True: run with nothing beside it, like a job whose next loss would be its last
    yields: bool = False  # True: leave half of the queue to other requests

    def make_job(self, **values: Any) -> Job:
        """Make a job with these terms, which is not stored yet."""
        now = clock.get_database_time()
        expires_at = None if self.expires_in_s is None else now + datetime.timedelta(seconds=self.expires_in_s)
        traced: dict[str, Any] = {"traceparent": tracing.get_traceparent()} if tracing.on else {}
        return job_rows.make_unsaved_job(
            model=self.spec.name,
            priority=self.priority,
            owner=self.owner,
            key_start=self.key_start,
            request_id=self.request_id,
            route=self.route,
            created_at=now,
            published_at=now,
            expires_at=expires_at,
            recoveries=job_rows.get_run_alone_threshold() if self.alone else 0,
            **traced,
            **values,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission(Terms):
    """A submission of one job.

    `inputs` is one input, or a list of several. `webhook` is the address that is notified when the job ends. `retry_of`
    is the job that is run again: with the key of another request this is another one.
    """

    inputs: Any
    parameters: Mapping[str, Any] = field(default_factory=dict)
    webhook: str = ""
    retry_of: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkItem:
    """One input of a bulk, or the error because of which its line could not be read."""

    inputs: Any = None
    parameters: Any = None
    error: InferenceError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkSubmission(Terms):
    """A submission of one job for each of `items`."""

    items: Sequence[BulkItem]
    priority: int = Priority.LOW
