"""Problems in the shape that OpenAI's clients read, at their addresses: `{"error": {"message", "type", …}}`.

These clients send a request again by themselves after 408, 409, 429 and 5xx. The header `x-should-retry` stops them
where that would run a job a second time.
"""

from __future__ import annotations

import re
from typing import Any

from django.http import HttpRequest, HttpResponse

from api.errors import problems
from inference.errors import UNREADABLE, ContextLengthExceeded, InvalidInput

ADDRESSES = re.compile(
    r"/openai/|/embeddings/|/v1/models/[^/]+/v1/embeddings/|/v1/(?:audio|batches|chat|completions|embeddings)/"
    r"|/v1/(?:files|moderations|responses)/"
    r"|/v1/images/"  # not served: 404 in OpenAI's form
)
PACKAGE = "HTTP_X_STAINLESS_LANG"  # the header that the packages have in all languages
NAME = r"[a-z_]+(?:[.\[][\w.\[\]]*)?"
FIELD = re.compile(rf"(?:{NAME}: (?={NAME}: ))?({NAME}): ")  # the last of "input[3]: dimensions: "
# The field that holds the inputs, by a part of the address.
INPUTS = {
    "chat": "messages", "completions": "prompt", "embeddings": "input", "moderations": "input", "rerank": "query",
    "responses": "input", "audio": "input",
}  # fmt: skip
BAD_REQUEST, FORBIDDEN, TOO_MANY, UNPROCESSABLE = 400, 403, 429, 422  # OpenAI does not answer 422
CODES = {  # the service's code: the code that programs written for OpenAI look for
    "unauthorized": "invalid_api_key",
    "unknown_model": "model_not_found",
    "too_many_requests": "rate_limit_exceeded",
}


def is_client_request(request: HttpRequest) -> bool:
    """Return True if this address is one of OpenAI's, or if OpenAI's own package has sent the request."""
    return PACKAGE in request.META or ADDRESSES.match(f"{request.path_info}/") is not None


def get_dialect_name(request: HttpRequest) -> str:
    """Return the name of the dialect, for figures."""
    return "openai"


def translate_status(status: int) -> int:
    """Return the status that OpenAI uses where this service uses `status`."""
    return BAD_REQUEST if status == UNPROCESSABLE else status


def reshape_problem(request: HttpRequest, answer: HttpResponse) -> HttpResponse:
    """Return a problem in OpenAI's shape, and any other answer as it is."""
    if not (problem := problems.read_problem(answer)):
        return answer
    inputs = next((INPUTS[part] for part in request.path_info.split("/") if part in INPUTS), "inputs")
    problems.replace_body(answer, make_error_document(problem, inputs=inputs))
    answer.status_code = translate_status(answer.status_code)
    is_same = request.method == "GET" or "HTTP_IDEMPOTENCY_KEY" in request.META
    again = _may_be_sent_again(problem, is_same)
    if again is not None:
        answer.headers["X-Should-Retry"] = "true" if again else "false"
    return answer


def make_stream_error(message: str, code: str) -> dict[str, Any]:
    """Return the error document for a stream that has begun."""
    return {"error": {"message": message, "type": "server_error", "param": None, "code": code}}


def make_error_document(problem: dict[str, Any], *, inputs: str) -> dict[str, Any]:
    """Return a problem's document in OpenAI's shape. `inputs` is the field of the request that holds its inputs."""
    code: str = problem["code"]
    error = {
        "message": problem["detail"],
        "type": _choose_error_type(problem["status"]),
        "param": _find_field(problem, inputs),
        "code": CODES.get(code, code),
    }
    return {"error": {**error, **problems.select_job_id(problem)}}


def _find_field(problem: dict[str, Any], inputs: str) -> str | None:
    """Return the field that a problem is about.

    The error of a job has its name only at the beginning of the text, and is about the inputs if it has none.
    """
    if errors := problem.get("errors"):
        return str(errors[0]["field"])
    if problem["code"] not in (InvalidInput.code, ContextLengthExceeded.code):
        return None
    if named := FIELD.match(problem["detail"]):
        return named[1]
    if problem["code"] == InvalidInput.code and (
        inputs == INPUTS["rerank"] or problem["detail"].startswith(UNREADABLE)
    ):
        return None  # perhaps a document is wrong, or a parameter
    return inputs


def _choose_error_type(status: int) -> str:
    if status == TOO_MANY:
        return "rate_limit_error"
    if status == FORBIDDEN:
        return "permission_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def _may_be_sent_again(problem: dict[str, Any], is_same: bool) -> bool | None:
    """Return True if the client may send the request again, False if not, and None if the status decides.

    `is_same` is True if the repeated request asks for the same job.
    """
    if "retryable" in problem:  # the job has ended
        return bool(problem["retryable"]) and not is_same
    return is_same if "job_id" in problem else None
