"""The operations at /v1/files and /v1/batches, which also exist below /openai."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter

from api import codec
from api.openapi import batch_shapes as shapes
from api.openapi.answer_shapes import DeletedShown, Shape
from api.openapi.operation_decorator import OPENAI, describe_operation
from api.openapi.operations import IDEMPOTENCY_KEY, WITH_BODY, make_query_parameter, make_request_example
from api.requests.file_batches import MOST_LIMIT

_FILE = OpenApiParameter("file_id", {"type": "string"}, OpenApiParameter.PATH)
_BATCH = OpenApiParameter("batch_id", {"type": "string"}, OpenApiParameter.PATH)
_LIMIT = make_query_parameter("limit", {"type": "integer", "minimum": 1, "maximum": MOST_LIMIT}, "Entries of a page.")
_AFTER = make_query_parameter("after", {"type": "string"}, "The `last_id` of the page before.")


def _describe_openai_operation(
    name: str, summary: str, address: str, answer: type[Shape], **described: Any
) -> Callable[..., Any]:
    return describe_operation(
        name, summary, answers={200: answer}, form=OPENAI, also_at=[f"/openai{address}"], **described
    )


def _describe_download(name: str, summary: str, address: str, **described: Any) -> Callable[..., Any]:
    return describe_operation(
        name,
        summary,
        answers={(200, "application/octet-stream"): OpenApiTypes.BINARY},
        form=OPENAI,
        also_at=[f"/openai{address}"],
        **described,
    )


upload_file = _describe_openai_operation(
    "files_upload",
    "Upload a file of requests",
    "/v1/files",
    shapes.FileShown,
    request={"multipart/form-data": shapes.FileBody},
    problems=("body_too_large", "unsupported_media_type", "invalid_input", "too_many_files"),
)
list_files = _describe_openai_operation(
    "files_list",
    "Files, the newest first, in pages",
    "/v1/files",
    shapes.FilePageShown,
    parameters=[
        make_query_parameter("purpose", {"type": "string"}, "Only with this purpose."),
        _LIMIT,
        _AFTER,
        make_query_parameter("order", {"type": "string", "enum": ["asc", "desc"]}, "By the time of their creation."),
    ],
)
get_file = _describe_openai_operation(
    "files_get", "One file", "/v1/files/{file_id}", shapes.FileShown, parameters=[_FILE], problems=["file_not_found"]
)
delete_file = _describe_openai_operation(
    "files_delete",
    "Delete a file that no batch reads any more",
    "/v1/files/{file_id}",
    DeletedShown,
    parameters=[_FILE],
    problems=["file_not_found", "file_in_use", "forbidden"],
)
get_file_content = _describe_download(
    "files_content",
    "The content of a file",
    "/v1/files/{file_id}/content",
    parameters=[_FILE],
    problems=["file_not_found"],
)
create_batch = _describe_openai_operation(
    "batches_create",
    "Have the lines of a file answered, which may take hours",
    "/v1/batches",
    shapes.BatchShown,
    request={codec.CONTENT_TYPE: shapes.BatchBody},
    parameters=[IDEMPOTENCY_KEY],
    problems=(*WITH_BODY, "file_not_found", "too_many_queued", "idempotency_mismatch"),
    examples=[
        make_request_example(
            "Embeddings within a day",
            {"input_file_id": "file-…", "endpoint": "/v1/embeddings", "completion_window": "24h"},
        )
    ],
    headers={"Retry-After": [429, 503]},
)
list_batches = _describe_openai_operation(
    "batches_list",
    "Batches, the newest first, in pages",
    "/v1/batches",
    shapes.BatchPageShown,
    parameters=[_LIMIT, _AFTER],
)
get_batch = _describe_openai_operation(
    "batches_get",
    "Progress of a batch, and the files of its answers",
    "/v1/batches/{batch_id}",
    shapes.BatchShown,
    parameters=[_BATCH],
    problems=["batch_not_found"],
    headers={"Retry-After": [200]},
)
get_batch_output = _describe_download(
    "batches_output",
    "The answers of a batch so far, as its output file will have them",
    "/v1/batches/{batch_id}/output",
    parameters=[_BATCH],
    problems=["batch_not_found", "file_not_found"],
)
cancel_batch = _describe_openai_operation(
    "batches_cancel",
    "Cancel a batch; its answers so far are kept",
    "/v1/batches/{batch_id}/cancel",
    shapes.BatchShown,
    parameters=[_BATCH],
    problems=["batch_not_found", "forbidden", "body_too_large"],
)
