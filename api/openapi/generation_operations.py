"""The operations on chats, completions and responses, and OpenAI's on models. Most also exist below /openai."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter

from api import codec
from api.openapi import openai_shapes as shapes
from api.openapi.answer_shapes import ANY, DeletedShown, OpenAIModelShown
from api.openapi.operation_decorator import COMPLETING, OPENAI, describe_operation
from api.openapi.operations import (
    FAILED_JOB,
    IDEMPOTENCY_KEY,
    JOB,
    LAST_EVENT_ID,
    ON_DISCONNECT,
    make_query_parameter,
    make_request_example,
    make_wait_parameter,
    waiting,
)
from api.requests import bodies

_WAIT = make_wait_parameter("timeout", bodies.MAX_WAIT_S, "the answer, where it is not streamed")
_COMPLETION = OpenApiParameter("completion_id", {"type": "string"}, OpenApiParameter.PATH)
_RESPONSE = OpenApiParameter("response_id", {"type": "string"}, OpenApiParameter.PATH)
_RESPONSE_ANSWERS = {(200, codec.CONTENT_TYPE): shapes.ResponseShown, (200, "text/event-stream"): ANY}
_CHAT_ANSWERS = {(200, codec.CONTENT_TYPE): shapes.ChatShown, (200, "text/event-stream"): ANY}
_TEXT_ANSWERS = {(200, codec.CONTENT_TYPE): shapes.TextShown, (200, "text/event-stream"): ANY}
_CHAT = [{"role": "user", "content": "Name a colour."}]

completion: dict[str, Any] = {**waiting, "parameters": [_WAIT, IDEMPOTENCY_KEY, ON_DISCONNECT]}
openai: dict[str, Any] = {
    "form": OPENAI,
    "headers": {**waiting["headers"], "X-Should-Retry": [400, 409, 502, 504]},
}
retrieval: dict[str, Any] = {
    **openai,
    "problems": (*JOB, *FAILED_JOB, "overloaded"),
    "parameters": [
        _COMPLETION,
        _WAIT,
        make_query_parameter("stream", {"type": "boolean"}, "Its chunks, also if it has ended."),
        LAST_EVENT_ID,
        make_query_parameter("last_event_id", {"type": "string"}, "The same."),
        ON_DISCONNECT,
    ],
}
complete_chat = describe_operation(
    "openai_complete_chat",
    "Answer a chat, as OpenAI's clients ask for it",
    request=shapes.ChatBody,
    answers=_CHAT_ANSWERS,
    examples=[make_request_example("A chat", {"model": "smollm", "messages": _CHAT, "max_tokens": 20})],
    also_at=["/openai/v1/chat/completions"],
    **{**completion, **openai},
)
complete_text = describe_operation(
    "openai_complete_text",
    "Continue a text, as OpenAI's clients ask for it",
    request=shapes.TextBody,
    answers=_TEXT_ANSWERS,
    examples=[make_request_example("A text", {"model": "smollm", "prompt": "Once upon a time", "max_tokens": 20})],
    also_at=["/openai/v1/completions"],
    **{**completion, **openai},
)
complete_chat_of_model = describe_operation(
    "models_complete_chat",
    "Answer a chat, as Hugging Face's clients ask for it",
    request=shapes.ModelChatBody,
    answers=_CHAT_ANSWERS,
    form=COMPLETING,
    **completion,
)
complete_text_of_model = describe_operation(
    "models_complete_text",
    "Continue a text, as Hugging Face's JavaScript client asks for it",
    request=shapes.ModelTextBody,
    answers=_TEXT_ANSWERS,
    form=COMPLETING,
    **completion,
)
get_chat = describe_operation(
    "openai_get_chat",
    "The answer to a chat that was sent before",
    answers=_CHAT_ANSWERS,
    also_at=["/openai/v1/chat/completions/{completion_id}"],
    **retrieval,
)
get_text = describe_operation(
    "openai_get_text",
    "A continued text that was asked for before",
    answers=_TEXT_ANSWERS,
    also_at=["/openai/v1/completions/{completion_id}"],
    **retrieval,
)
delete_chat = describe_operation(
    "openai_delete_chat",
    "Delete a finished chat",
    answers={200: DeletedShown},
    parameters=[_COMPLETION],
    problems=[*JOB, "job_in_use", "forbidden"],
    form=OPENAI,
    also_at=["/openai/v1/chat/completions/{completion_id}"],
)
list_models = describe_operation(
    "openai_list_models",
    "Models that OpenAI's clients can call",
    answers={200: shapes.OpenAIModelsShown},
    problems=["models_file_refused"],
    form=OPENAI,
)
get_model = describe_operation(
    "openai_get_model",
    "A model that OpenAI's clients can call",
    answers={200: OpenAIModelShown},
    parameters=[OpenApiParameter("name", {"type": "string"}, OpenApiParameter.PATH)],
    problems=["unknown_model", "models_file_refused"],
    form=OPENAI,
)
create_response = describe_operation(
    "responses_create",
    "Answer a chat by OpenAI's newer interface",
    request=shapes.ResponseBody,
    answers=_RESPONSE_ANSWERS,
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
    answers=_RESPONSE_ANSWERS,
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
