"""How operations are described in the OpenAPI document: one decorator, so that all of them say the same things."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema

from api.errors import CONTENT_TYPE, OUTCOMES, TABLE
from api.openapi.shapes import ProblemShown
from api.requests import bodies
from inference.catalog.lookup import models

ALWAYS = ("bad_request", "store_unavailable", "internal")
WITH_KEY = ("unauthorized", "too_many_requests")
WITH_BODY = ("invalid_json", "body_too_large", "unsupported_media_type", "invalid_input")
ADMISSION = ("unknown_model", "idempotency_mismatch", "too_many_queued", "queue_full", "overloaded")
SUBMITTING = (*WITH_BODY, *ADMISSION)
FAILED_JOB = (*OUTCOMES, "not_finished")
JOB = ("job_not_found", "job_gone")

IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "pattern": f"^{bodies.KEY.pattern}$"},
    OpenApiParameter.HEADER,
    description="The same key and body is the same job, however often.",
)
PREFER = OpenApiParameter(
    "Prefer", str, OpenApiParameter.HEADER, description="`wait=N`: answer with the finished job if that is within N s."
)
NONE_MATCH = OpenApiParameter(
    "If-None-Match", str, OpenApiParameter.HEADER, description="The ETag of an answer: 304 while nothing has changed."
)


_PROBLEM = OpenApiExample(
    "A full queue",
    {
        "type": "/v1/problems/queue_full", "title": "The model's queue is full", "status": 503, "code": "queue_full",
        "detail": "The queue of 'embeddings' is full: 1000 jobs wait, at most 1000 may. Try again later.",
        "error": "The queue of 'embeddings' is full: 1000 jobs wait, at most 1000 may. Try again later.",
        "request_id": "01a1fdc12fd2726dbe15fb3ed288f6b0",
    },
    response_only=True, status_codes=["503"], media_type=CONTENT_TYPE,
)  # fmt: skip


def wait(name: str, default: float, what: str) -> OpenApiParameter:
    schema = {"type": "number", "minimum": 0, "maximum": bodies.MAX_WAIT_S, "default": default}
    return OpenApiParameter(name, schema, OpenApiParameter.QUERY, description=f"Seconds to wait for {what}.")


def query(name: str, schema: Mapping[str, Any], description: str) -> OpenApiParameter:
    return OpenApiParameter(name, dict(schema), OpenApiParameter.QUERY, description=description)


def operation(
    name: str,
    summary: str,
    *,
    description: str = "",
    answers: Mapping[Any, Any],
    request: Any = None,
    problems: Iterable[str] = (),
    parameters: Iterable[OpenApiParameter] = (),
    examples: Iterable[OpenApiExample] = (),
    headers: Mapping[str, Iterable[int]] | None = None,
    open_to_all: bool = False,
) -> Callable[..., Any]:
    """`headers` says which answers carry which header; X-Request-Id is on all."""
    codes = (*problems, *ALWAYS, *(() if open_to_all else WITH_KEY))
    statuses = sorted({*map(_status, answers), *(TABLE[code][0] for code in codes)})
    carried = [
        OpenApiParameter(header, str, OpenApiParameter.HEADER, response=list(on), description=HEADERS[header])
        for header, on in {**(headers or {}), "X-Request-Id": statuses}.items()
    ]
    return extend_schema(
        operation_id=name,
        summary=summary,
        description=description or f"{summary}.",
        request=request,
        responses={**_answers(answers), **_problems(codes)},
        parameters=[*parameters, *carried],
        examples=[*examples, _PROBLEM],
        auth=[] if open_to_all else None,
        tags=[name.partition("_")[0]],
    )


HEADERS = {
    "X-Request-Id": "The request's own id, or one that was made for it; also on the job and in the log.",
    "Location": "Where the job, or the bulk, is.",
    "Retry-After": "Seconds.",
    "ETag": "Of this answer.",
    "Preference-Applied": "The wait that was kept.",
}


def _answers(answers: Mapping[Any, Any]) -> dict[Any, Any]:
    return {
        status: shown if shown is not None else OpenApiResponse(description="") for status, shown in answers.items()
    }


def _status(key: int | tuple[int, str]) -> int:
    return key[0] if isinstance(key, tuple) else key


def _problems(codes: Iterable[str]) -> dict[Any, Any]:
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(TABLE[code][0], []).append(code)
    return {
        (status, CONTENT_TYPE): OpenApiResponse(ProblemShown, description="; ".join(map(_in_words, found)))
        for status, found in sorted(by_status.items())
    }


def _in_words(code: str) -> str:
    return f"`{code}`: {TABLE[code][1]}"


def complete(result: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
    """What the fields cannot say: unknown ones are refused, and which models there are."""
    names = {"type": "string", "enum": sorted(models())}
    for name in ("JobBody", "BulkBody"):
        body = result["components"]["schemas"][name]
        body["additionalProperties"] = False
        body["properties"]["model"].update(names)
    for path, operations in result["paths"].items():
        for operation in operations.values() if path.startswith("/v1/models/{name}") else ():
            for parameter in operation["parameters"]:
                parameter["schema"] = names if parameter["name"] == "name" else parameter["schema"]
    return result
