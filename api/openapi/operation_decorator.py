"""The decorator that describes operations in the OpenAPI document, so that all of them say the same things."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema

from api import codec
from api.errors import cohere_tei, openai
from api.errors.problems import CONTENT_TYPE, TABLE
from api.openapi.answer_shapes import ProblemShown, Shape
from api.openapi.embedding_rerank_shapes import RetrievalProblemShown
from api.openapi.openai_shapes import OpenAIProblemShown
from inference.catalog.lookup import get_catalog_or_empty

if TYPE_CHECKING:
    from rest_framework.serializers import BaseSerializer

BODIES = (
    "JobBody", "BulkBody", "LineBody", "RunBody", "ChatBody", "TextBody", "ModelChatBody", "ModelTextBody",
    "RerankBody", "EmbeddingsBody", "CohereBody", "EmbedBody", "TokensBody", "SimilarityBody", "PredictBody",
    "BatchBody", "ResponseBody", "ModerationBody",
)  # fmt: skip
NAMING = ("JobBody", "BulkBody", "ResponseBody", "ChatBody", "TextBody")  # a model, which they must
ALWAYS = ("bad_request", "store_unavailable", "internal")
WITH_KEY = ("unauthorized", "too_many_requests")

_PROBLEM = OpenApiExample(
    "A full queue",
    {
        "type": "/v1/problems/queue_full",
        "title": "The model's queue is full",
        "status": 503,
        "code": "queue_full",
        "detail": "The queue of 'embeddings' is full: 1000 jobs wait, at most 1000 may. Try again later.",
        "error": "The queue of 'embeddings' is full: 1000 jobs wait, at most 1000 may. Try again later.",
        "request_id": "01a1fdc12fd2726dbe15fb3ed288f6b0",
    },
    response_only=True,
    status_codes=["503"],
    media_type=CONTENT_TYPE,
)


@dataclass(frozen=True, slots=True)
class ProblemForm:
    """A way to tell the clients of an address of a problem."""

    shape: type[Shape]
    media_type: str = codec.CONTENT_TYPE
    status_of: Callable[[str, int], int] = lambda code, status: status  # of a code, and of its status in `TABLE`


SERVICE = ProblemForm(ProblemShown, CONTENT_TYPE)
COMPLETING = ProblemForm(ProblemShown)
OPENAI = ProblemForm(OpenAIProblemShown, status_of=lambda code, status: openai.translate_status(status))
COHERE = ProblemForm(RetrievalProblemShown)
TEI = ProblemForm(RetrievalProblemShown, status_of=cohere_tei.map_tei_status)


def describe_operation(
    name: str,
    summary: str,
    *,
    answers: Mapping[Any, Any],
    request: type[BaseSerializer[Any]] | Mapping[str, Any] | None = None,
    problems: Iterable[str] = (),
    parameters: Iterable[OpenApiParameter] = (),
    examples: Iterable[OpenApiExample] = (),
    headers: Mapping[str, Iterable[int]] | None = None,
    open_to_all: bool = False,
    form: ProblemForm = SERVICE,
    also_at: Iterable[str] = (),
    note: str = "",
) -> Callable[..., Any]:
    """Return the decorator that describes a view's method in the OpenAPI document.

    `headers` holds, by header, the statuses of the answers that carry it. X-Request-Id is on all answers. If a view has
    several addresses, one is described, and its description names the others, `also_at`.
    """
    codes = (*problems, *ALWAYS, *(() if open_to_all else WITH_KEY))
    responses = {**answers, **_make_problem_responses(codes, form)}
    statuses = sorted({key[0] if isinstance(key, tuple) else key for key in responses})
    others = ", ".join(f"`{address}`" for address in also_at)
    carried = [
        OpenApiParameter(header, str, OpenApiParameter.HEADER, response=list(on), description=HEADERS[header])
        for header, on in {**(headers or {}), "X-Request-Id": statuses}.items()
    ]
    return extend_schema(
        operation_id=name,
        summary=summary,
        description=" ".join(filter(None, (f"{summary}.", note, others and f"Also at {others}."))),
        request=request,
        responses=responses,
        parameters=[*parameters, *carried],
        examples=[*examples, *([_PROBLEM] if form is SERVICE else [])],
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
    "X-Should-Retry": "What OpenAI's clients obey: false where sending it again would run the job a second time.",
}


def _make_problem_responses(codes: Iterable[str], form: ProblemForm) -> dict[Any, Any]:
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        status, title = TABLE[code]
        by_status.setdefault(form.status_of(code, status), []).append(f"`{code}`: {title}")
    return {
        (status, form.media_type): OpenApiResponse(form.shape, description="; ".join(found))
        for status, found in sorted(by_status.items())
    }


def _allow_null(shape: dict[str, Any]) -> None:
    if "type" in shape:
        types = shape["type"] if isinstance(shape["type"], list) else [shape["type"]]
        shape["type"] = [*types, *({"null"} - set(types))]
    for wrapper in {"$ref", "allOf"} & shape.keys():
        shape["oneOf"] = [{wrapper: shape.pop(wrapper)}, {"type": "null"}]


def complete_schemas(result: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
    """Add what the fields cannot say: unknown ones are refused, null means not given, and the names of the models."""
    names = {"type": "string", "enum": sorted(get_catalog_or_empty())}
    for name in BODIES:
        body = result["components"]["schemas"][name]
        for field, shape in body["properties"].items():
            if field not in body["required"]:
                _allow_null(shape)
    for name in NAMING:
        result["components"]["schemas"][name]["properties"]["model"].update(names)
    for name in ("JobBody", "BulkBody"):
        result["components"]["schemas"][name]["additionalProperties"] = False
    for path, operations in result["paths"].items():
        for operation in operations.values() if path.startswith("/v1/models/{name}") else ():
            for parameter in operation["parameters"]:
                parameter["schema"] = names if parameter["name"] == "name" else parameter["schema"]
    return result
