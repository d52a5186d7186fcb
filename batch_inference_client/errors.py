"""The errors that calls of the client raise, and that stand in the place of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PASSING = frozenset(  # codes with which the service took nothing, and may take it later
    {"too_many_requests", "too_many_queued", "queue_full", "overloaded", "no_worker", "store_unavailable"}
)


class ClientError(Exception):
    """The error of a call of the client.

    `code` is one of the service's (docs/reference/api.md), or one of the client's own: `unreachable`, `redirected`,
    `no_answer`, `other_inputs`, `closed`. `passing` is true if the same call may succeed later.

    The error can be made again from its `args`, as pickle does, and Celery with the result of a task.
    """

    def __init__(
        self,
        detail: str,
        code: str,
        passing: bool = False,
        retry_after_s: float | None = None,
        problem: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail, code, passing, retry_after_s, problem)
        self.detail, self.code, self.passing, self.retry_after_s = detail, code, passing, retry_after_s
        self.problem = problem or {}

    @property
    def job_id(self) -> str | None:
        """The id of the job that the error is about, if there is one."""
        return self.problem.get("job_id")

    @property
    def request_id(self) -> str | None:
        """The id of the request, under which the service's log has more."""
        return self.problem.get("request_id")

    def __str__(self) -> str:
        suffix = f" (request {self.request_id})" if self.request_id else ""
        return f"{self.detail} [{self.code}]{suffix}"


class JobError(ClientError):
    """The error of a job without output.

    The job failed, its input was refused, its time was over, it was cancelled, or there is no such job (any more).
    """

    def __init__(self, detail: str, code: str, job_id: str | None = None, retryable: bool = False) -> None:
        super().__init__(detail, code, problem={"job_id": job_id} if job_id else None)
        self.args = (detail, code, job_id, retryable)
        self.retryable = retryable  # True if a new job with the same input may succeed

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> JobError:
        """Return the error of a finished job, given as the service shows it."""
        error = job["error"] or {"code": job["status"], "detail": f"The job is {job['status']}.", "retryable": False}
        return cls(error["detail"], code=error["code"], job_id=job["id"], retryable=error["retryable"])

    @classmethod
    def missing(cls, job_id: str, code: str) -> JobError:
        is_gone = code == "job_gone"
        why = "It was removed after the time that jobs are kept" if is_gone else "It is not there, or not yours"
        return cls(f"There is no job {job_id}. {why}.", code=code, job_id=job_id)
