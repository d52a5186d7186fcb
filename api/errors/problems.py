"""Errors as `application/problem+json` (RFC 9457), with one table of the status and title of each code.

A code is stable. The member `error` repeats the detail, as Hugging Face's clients read their message there.
"""

from __future__ import annotations

import logging
import math
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from django.core.exceptions import TooManyFieldsSent
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from rest_framework import exceptions

from api import request_id
from inference.catalog.specs import CatalogError
from inference.errors import RETRYABLE_OUTCOMES, InferenceError, ModelsFileRefused, NoneAccepted
from inference.figures import tally_rows
from inference.models import Job

logger = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"
COMPLETING = re.compile(r"/v1/models/[^/]+/v1/")
TYPE_PREFIX = "/v1/problems/"
RETRY_AFTER_S = 5

TABLE: dict[str, tuple[int, str]] = {
    "bad_request": (400, "The request is malformed"),
    "invalid_json": (400, "The body is not valid JSON"),
    "unauthorized": (401, "A valid API key is needed"),
    "forbidden": (403, "This key may not do that"),
    "not_found": (404, "There is nothing at this address"),
    "unknown_model": (404, "There is no such model"),
    "job_not_found": (404, "There is no such job"),
    "bulk_not_found": (404, "There is no such bulk"),
    "file_not_found": (404, "There is no such file"),
    "batch_not_found": (404, "There is no such batch"),
    "method_not_allowed": (405, "This address does not take this method"),
    "cancelled": (409, "The job was cancelled"),
    "expired": (409, "The job's deadline passed before it was started"),
    "job_in_use": (409, "The job is not finished, or a bulk counts it"),
    "file_in_use": (409, "A batch still reads the file"),
    "job_gone": (410, "The job was removed after the time that jobs are kept"),
    "body_too_large": (413, "The body is too large"),
    "unsupported_media_type": (415, "The body's media type is not taken here"),
    "invalid_input": (422, "The input, or a field beside it, is not valid"),
    "context_length_exceeded": (422, "The input is longer than the model reads"),
    "out_of_memory": (422, "The input does not fit on the device, even alone"),
    "idempotency_mismatch": (422, "The Idempotency-Key was used with another request"),
    "too_many_requests": (429, "The key's request rate is used up"),
    "too_many_queued": (429, "The key's share of the queue is used up"),
    "too_many_files": (429, "The key's files take all the room that they may"),
    "internal": (500, "The service failed"),
    "engine_error": (502, "The model raised an error"),
    "bad_output": (502, "The model's answer has the wrong shape"),
    "timed_out": (502, "The model ran past its time limit"),
    "crashed": (502, "The model's process died of this input"),
    "lost": (502, "Every worker that ran the job was lost"),
    "failed": (502, "The job failed"),
    "device_failed": (502, "The model's device failed"),
    "model_unavailable": (502, "The model could not be loaded"),
    "queue_full": (503, "The model's queue is full"),
    "overloaded": (503, "The wait would be too long"),
    "no_worker": (503, "No worker serves the model now"),
    "models_file_refused": (503, "The models file of this service is refused"),
    "store_unavailable": (503, "The database did not answer in time"),
    "not_finished": (504, "The wait is over, the job is not finished"),
}

OUTCOMES = {  # codes with which a job without output ends: the client must neither wait nor ask again
    code: TABLE[code]
    for code in (
        "cancelled", "expired", "invalid_input", "context_length_exceeded", "out_of_memory", "engine_error",
        "bad_output", "timed_out", "crashed", "lost", "failed", "device_failed", "model_unavailable",
    )
}  # fmt: skip


class ApiError(InferenceError):
    """An error in a request as HTTP. `code` is a key of `TABLE`."""

    def __init__(
        self, message: str, code: str = "bad_request", *, retry_after_s: float | None = None, field: str = ""
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.code = code
        self.field = field  # that the error is about, if it is about one


def make_problem(
    code: str,
    detail: str = "",
    *,
    table: Mapping[str, tuple[int, str]] = TABLE,
    retry_after_s: float | None = None,
    headers: Mapping[str, str] | None = None,
    model: str = "",
    **members: Any,
) -> HttpResponse:
    """Return the answer for `code`. `members` are added to the document.

    A refusal (429 or 503) is counted for `model`, the model that is its reason.
    """
    status, title = table.get(code, table["failed"])
    if status in (429, 503):
        tally_rows.note_tally(model, {"refused": {code: 1}})
    detail = detail or f"{title}."
    body = {
        "type": TYPE_PREFIX + code, "title": title, "status": status, "detail": detail, "code": code, "error": detail,
        "request_id": request_id.get_request_id(), **members,
    }  # fmt: skip
    response = HttpResponse(orjson.dumps(body), status=status, headers=headers, content_type=CONTENT_TYPE)
    if retry_after_s is not None or status == 503:
        response.headers["Retry-After"] = str(max(1, math.ceil(retry_after_s or RETRY_AFTER_S)))
    if status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="inference"'
    return response


def make_job_problem(job: Job) -> HttpResponse:
    """Return the answer for a finished job without output.

    It says why the job has none, and whether a new job with the same inputs may have one.
    """
    code = job.error_code or job.status
    retryable = code in RETRYABLE_OUTCOMES
    again = f" Run it again with POST /v1/jobs/{job.id}/retry." if retryable else ""
    return make_problem(code, job.public_detail + again, table=OUTCOMES, job_id=str(job.id), retryable=retryable)


def answer_exception(error: BaseException) -> HttpResponse:
    """Return the answer for an exception. An unforeseen one is logged, and answered with 500 without its own text."""
    if isinstance(error, CatalogError):
        error = ModelsFileRefused(str(error))
    if isinstance(error, InferenceError):
        field = getattr(error, "field", None)
        members: dict[str, Any] = {"errors": [{"field": field, "message": error.message}]} if field else {}
        for name in ("job_id", "bulk_id"):
            if found := getattr(error, name, None):
                members[name] = str(found)
        if isinstance(error, NoneAccepted):
            members["refused"] = error.rejected
        return make_problem(error.code, error.message, retry_after_s=error.retry_after_s, model=error.model, **members)
    if isinstance(error, exceptions.ValidationError):
        return make_problem("invalid_input", describe_validation_error(error), errors=list(_flatten(error.detail)))
    if isinstance(error, TooManyFieldsSent):
        return make_problem("bad_request", "The query has too many parameters.")
    if isinstance(error, (OperationalError, InterfaceError)):
        logger.error("database away: %s", error)
        return make_problem("store_unavailable", "The database did not answer in time. Try again in a few seconds.")
    logger.error("not foreseen, answered with 500", exc_info=error)
    return make_problem("internal", "Something failed inside the service. The log has it under this request_id.")


def describe_validation_error(error: exceptions.ValidationError) -> str:
    return "; ".join(f"{found['field']}: {found['message']}" for found in _flatten(error.detail))


def _flatten(detail: object, path: str = "") -> Iterator[dict[str, str]]:
    """Yield the field paths and messages of a validation error's tree."""
    if isinstance(detail, dict):
        for key, value in detail.items():
            yield from _flatten(value, path if key == "non_field_errors" else f"{path}.{key}".strip("."))
    elif isinstance(detail, list):
        for value in detail:
            yield from _flatten(value, path)
    else:
        yield {"field": path or "body", "message": str(detail)}


def set_problem_content_type(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """Return the answer, with application/json as the type of a problem at a model's completion addresses.

    Hugging Face's JavaScript client reads a failed stream there only if its type is application/json.
    """
    if response.headers.get("Content-Type") == CONTENT_TYPE and COMPLETING.match(request.path_info):
        response.headers["Content-Type"] = "application/json"
    return response


def read_problem(answer: HttpResponse) -> dict[str, Any] | None:
    """Return the document of an answer that is a problem, and None for any other answer."""
    if answer.headers.get("Content-Type") != CONTENT_TYPE:
        return None
    document: dict[str, Any] = orjson.loads(answer.content)
    return document


def select_job_id(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return the member of a problem by which the operator finds its job, if there is one."""
    return {"job_id": problem["job_id"]} if "job_id" in problem else {}


def replace_body(answer: HttpResponse, body: Mapping[str, Any]) -> None:
    """Replace the body of a problem by one that the clients of its address read."""
    answer.content = orjson.dumps(body)
    answer.headers["Content-Type"] = "application/json"
    answer.headers.pop("Content-Length", None)  # which Django's middleware has counted for pages


def answer_not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return make_problem("not_found", f"There is nothing at {request.path[:200]}. GET /v1/docs shows what there is.")


def answer_server_error(request: HttpRequest) -> HttpResponse:
    """Return the answer for an exception in a page. Django has logged the exception, and is handling it now."""
    if isinstance(sys.exc_info()[1], (OperationalError, InterfaceError)):
        return make_problem("store_unavailable")
    return make_problem("internal")


def answer_bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return make_problem("bad_request")
