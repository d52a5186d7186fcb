"""The operations at /v1/responses, which also exist below /openai."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter

from api import codec
from api.openapi import openai_shapes as shapes
from api.openapi.answer_shapes import ANY, DeletedShown
from api.openapi.operation_decorator import OPENAI, describe_operation
from api.openapi.operations import IDEMPOTENCY_KEY, ON_DISCONNECT, make_query_parameter, make_wait_parameter, waiting
from api.requests import bodies

_RESPONSE = OpenApiParameter("response_id", {"type": "string"}, OpenApiParameter.PATH)
_ANSWERS = {(200, codec.CONTENT_TYPE): shapes.ResponseShown, (200, "text/event-stream"): ANY}

create_response = describe_operation(
    "responses_create",
    "Answer a chat by OpenAI's newer interface",
    request=shapes.ResponseBody,
    answers=_ANSWERS,
    parameters=[
        make_wait_parameter("timeout", bodies.MAX_WAIT_S, "the answer, where it is neither streamed nor in background"),
        IDEMPOTENCY_KEY,
        ON_DISCONNECT,
    ],
    form=OPENAI,
    also_at=["/openai/v1/responses", "/v1/models/{name}/v1/responses"],
    **waiting,
)
get_response = describe_operation(
    "responses_get",
    "A response, or its events from any on",
    answers=_ANSWERS,
    parameters=[
        _RESPONSE,
        make_query_parameter("stream", {"type": "boolean"}, "Its events, also if it has ended."),
        make_query_parameter(
            "starting_after", {"type": "integer", "minimum": 0}, "Only events with a higher `sequence_number`."
        ),
        make_query_parameter("include_obfuscation", {"type": "boolean"}, "Ignored."),
        ON_DISCONNECT,
    ],
    problems=["job_not_found", "job_gone"],
    form=OPENAI,
    also_at=["/openai/v1/responses/{response_id}"],
)
delete_response = describe_operation(
    "responses_delete",
    "Delete a finished response",
    answers={200: DeletedShown},
    parameters=[_RESPONSE],
    problems=["job_not_found", "job_gone", "job_in_use", "forbidden"],
    form=OPENAI,
    also_at=["/openai/v1/responses/{response_id}"],
)
cancel_response = describe_operation(
    "responses_cancel",
    "Cancel a response that is not finished",
    answers={200: shapes.ResponseShown},
    parameters=[_RESPONSE],
    problems=["job_not_found", "job_gone", "forbidden", "body_too_large"],
    form=OPENAI,
    also_at=["/openai/v1/responses/{response_id}/cancel"],
)
