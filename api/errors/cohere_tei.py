"""Problems in the shape that clients of embedding, classification and ranking servers read.

Cohere's clients look at `message`, those of Text Embeddings Inference at `error` and `error_type`. The latter expect
429 where a queue is full, and 424 where a model has failed.
"""

from __future__ import annotations

import re

from django.http import HttpRequest, HttpResponse

from api.errors import problems
from inference.errors import ContextLengthExceeded

TEI = re.compile(r"(?:/v1/models/[^/]+)?/(?:embed|embed_all|similarity|predict|info|rerank)/|//")
ADDRESSES = re.compile(rf"{TEI.pattern}|/v[12]/(?:embed|rerank)/")
ERROR_TYPES = OVERLOADED, VALIDATION, TOKENIZER, BACKEND = ("Overloaded", "Validation", "Tokenizer", "Backend")
FULL = ("queue_full", "overloaded", "too_many_queued", "too_many_requests")
FAILED, TOO_MANY = 424, 429
STATUSES = {502: FAILED}


def is_client_request(request: HttpRequest) -> bool:
    """Return True if this address is one of Cohere's or of Text Embeddings Inference."""
    return ADDRESSES.fullmatch(f"{request.path_info}/") is not None


def get_dialect_name(request: HttpRequest) -> str:
    """Return the name of the dialect of this address, for figures. All that is sent to /rerank counts for TEI."""
    return "tei" if TEI.fullmatch(f"{request.path_info}/") else "cohere"


def map_tei_status(code: str, status: int) -> int:
    """Return the status that Text Embeddings Inference uses where this service uses `code` and `status`."""
    return TOO_MANY if code in FULL else STATUSES.get(status, status)


def reshape_problem(request: HttpRequest, answer: HttpResponse) -> HttpResponse:
    """Return a problem in the shape that these clients read, and any other answer as it is."""
    if not (problem := problems.read_problem(answer)):
        return answer
    status, detail = problem["status"], problem["detail"]
    kind = OVERLOADED if status in (429, 503) else BACKEND if status >= 500 else VALIDATION
    if problem["code"] == ContextLengthExceeded.code:
        kind = TOKENIZER
    body = {"message": detail, "error": detail, "error_type": kind, "code": problem["code"]}
    problems.replace_body(answer, {**body, **problems.select_job_id(problem)})
    if get_dialect_name(request) == "tei":
        answer.status_code = map_tei_status(problem["code"], status)
    return answer
