"""Gives problems the shape that clients read who have texts ranked.

Cohere's look at `message`, those of Text Embeddings Inference at `error` and `error_type`.
"""

from __future__ import annotations

import orjson
from django.http import HttpRequest, HttpResponse

from api import errors

ADDRESSES = ("/rerank", "/v1/rerank", "/v2/rerank")
CONTENT_TYPE = "application/json"
OVERLOADED, VALIDATION, BACKEND = "Overloaded", "Validation", "Backend"  # Text Embeddings Inference names them so.


def speaks(request: HttpRequest) -> bool:
    """Return whether this address is one of theirs."""
    return request.path_info.rstrip("/") in ADDRESSES


def reshaped(request: HttpRequest, answer: HttpResponse) -> HttpResponse:
    """Give a problem its shape; any other answer stays as it is."""
    if answer.headers.get("Content-Type") != errors.CONTENT_TYPE:
        return answer
    problem = orjson.loads(answer.content)
    kind = OVERLOADED if problem["status"] in (429, 503) else BACKEND if problem["status"] >= 500 else VALIDATION
    told = {"message": problem["detail"], "error": problem["detail"], "error_type": kind, "code": problem["code"]}
    answer.content = orjson.dumps(told)
    answer.headers["Content-Type"] = CONTENT_TYPE
    return answer
