"""How operations are described in the OpenAPI document: one decorator, so that all of them say the same things."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema

from api.errors import CONTENT_TYPE, TABLE
from api.openapi.shapes import ProblemShown
from inference.catalog.lookup import known_models

BODIES = ("JobBody", "BulkBody", "LineBody", "RunBody", "ChatBody", "TextBody")
ALWAYS = ("bad_request", "store_unavailable", "internal")
WITH_KEY = ("unauthorized", "too_many_requests")

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


def operation(
    name: str,
    summary: str,
    *,
    answers: Mapping[Any, Any],
    request: Any = None,
    problems: Iterable[str] = (),
    parameters: Iterable[OpenApiParameter] = (),
    examples: Iterable[OpenApiExample] = (),
    headers: Mapping[str, Iterable[int]] | None = None,
    open_to_all: bool = False,
    problem_type: str = CONTENT_TYPE,
) -> Callable[..., Any]:
    """`headers` says which answers carry which header; X-Request-Id is on all."""
    codes = (*problems, *ALWAYS, *(() if open_to_all else WITH_KEY))
    responses = {**answers, **_problems(codes, problem_type)}
    statuses = sorted({key[0] if isinstance(key, tuple) else key for key in responses})
    carried = [
        OpenApiParameter(header, str, OpenApiParameter.HEADER, response=list(on), description=HEADERS[header])
        for header, on in {**(headers or {}), "X-Request-Id": statuses}.items()
    ]
    return extend_schema(
        operation_id=name,
        summary=summary,
        description=f"{summary}.",
        request=request,
        responses=responses,
        parameters=[*parameters, *carried],
        examples=[*examples, *([_PROBLEM] if problem_type == CONTENT_TYPE else [])],
        auth=[] if open_to_all else None,
        tags=[name.partition("_")[0]],
    )


HEADERS = {
    "X-Request-Id": "The request's own id, or one that was made for it; also on the job and in the log.",
    "Location": "Where the job, or the bulk, is.",
    "Content-Location": "Where the output is found again.",
    "Retry-After": "Seconds.",
    "ETag": "Of this answer.",
    "Preference-Applied": "The wait that was kept.",
}


def _problems(codes: Iterable[str], media_type: str) -> dict[Any, Any]:
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        status, title = TABLE[code]
        by_status.setdefault(status, []).append(f"`{code}`: {title}")
    return {
        (status, media_type): OpenApiResponse(ProblemShown, description="; ".join(found))
        for status, found in sorted(by_status.items())
    }


def _allow_null(shape: dict[str, Any]) -> None:
    if "type" in shape:
        types = shape["type"] if isinstance(shape["type"], list) else [shape["type"]]
        shape["type"] = [*types, *({"null"} - set(types))]
    for wrapper in {"$ref", "allOf"} & shape.keys():
        shape["oneOf"] = [{wrapper: shape.pop(wrapper)}, {"type": "null"}]


def complete(result: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
    """What the fields cannot say: unknown ones are refused, null is not given, and which models there are."""
    names = {"type": "string", "enum": sorted(known_models())}
    for name in BODIES:
        body = result["components"]["schemas"][name]
        for field, shape in body["properties"].items():
            if field not in body["required"]:
                _allow_null(shape)
    for name in ("JobBody", "BulkBody"):
        body = result["components"]["schemas"][name]
        body["additionalProperties"] = False
        body["properties"]["model"].update(names)
    for path, operations in result["paths"].items():
        for operation in operations.values() if path.startswith("/v1/models/{name}") else ():
            for parameter in operation["parameters"]:
                parameter["schema"] = names if parameter["name"] == "name" else parameter["schema"]
    return result
