"""A response, which is a chat's job in the form of OpenAI's newest clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api import codec
from api.answers.completions.completion import make_usage, read_finish_reason, read_generated_texts
from api.answers.completions.tool_calls import (
    Arguments,
    Part,
    Text,
    ToolCall,
    list_functions,
    make_call,
    make_reader,
    separate_text_and_calls,
)
from api.errors.problems import ApiError
from api.requests.dialects.base import TIERS, replace_beginning
from api.requests.dialects.generation.responses import REPEATED, read_echoed_fields
from api.requests.dialects.generation.tools import requires_call
from inference.catalog.sizes.lengths import drop_response_fields
from inference.models import Job, Status

PREFIX = "resp_"
STATUSES = {
    Status.QUEUED: "queued",
    Status.RUNNING: "in_progress",
    Status.SUCCEEDED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
    Status.EXPIRED: "failed",
}
WORDS = {"inputs": "input", "parameters.max_new_tokens": "max_output_tokens"}  # the service's names: the client's
CUT = {"reason": "max_output_tokens"}
# Fields that a client may read, and that have one value.
FIXED: Mapping[str, Any] = {
    "reasoning": {"effort": None, "summary": None}, "store": True, "truncation": "disabled",
}  # fmt: skip


def make_response(job: Job, repeated: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the response of a job, finished or not. Raises `ApiError` if the output of a job holds no text.

    `repeated` are the fields of the request that it repeats, by default as the job's inputs have them.
    """
    if repeated is None:
        repeated = read_echoed_fields(job.inputs)
    output, usage, is_cut = list[dict[str, Any]](), None, False
    if job.status == Status.SUCCEEDED:
        [(text, details)] = read_generated_texts(job)
        is_cut = read_finish_reason(details) == "length"
        output, usage = _make_items(job, text, is_cut=is_cut), _make_usage(details)
    return {**make_empty_response(job, repeated), "output": output, "usage": usage, **_make_status(job, is_cut=is_cut)}


def make_empty_response(job: Job, repeated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a response that has no output yet. It repeats some fields of its request."""
    parameters = job.parameters
    tools = [{"type": "function", **function, "strict": True} for function in list_functions(job)]
    return {
        **FIXED,
        **REPEATED,
        **{name: parameters[name] for name in ("temperature", "top_p") if name in parameters},
        **({"tool_choice": "required"} if tools and "grammar" in parameters else {}),  # of a chat
        **repeated,
        "id": f"{PREFIX}{job.id.hex}",
        "object": "response",
        "created_at": int(job.created_at.timestamp()),
        "model": job.model,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "max_output_tokens": parameters.get("max_new_tokens"),
        "output": [],
        "service_tier": TIERS.get(job.priority),
        "tools": tools,
        "usage": None,
    }


def make_text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def make_message(job: Job, index: int, text: str | None, status: str) -> dict[str, Any]:
    """Return the item of a message, whose place in the output is `index`. It has no part yet if `text` is None."""
    content = [] if text is None else [make_text_part(text)]
    return {
        "id": f"msg_{job.id.hex}{index:04x}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def make_call_item(call: Mapping[str, Any], status: str) -> dict[str, Any]:
    """Return the item of a call of a tool, which is in the form of a chat's."""
    return {
        "id": f"fc_{call['id'].removeprefix('call_')}",
        "type": "function_call",
        "call_id": call["id"],
        "name": call["function"]["name"],
        "arguments": call["function"]["arguments"],
        "status": status,
    }


def read_messages(job: Job) -> list[dict[str, Any]]:
    """Return the messages of a response that has succeeded, with its answer and without its instructions.

    They are as chat templates take them. Raises `ApiError` if the output holds no text.
    """
    [(text, _)] = read_generated_texts(job)
    words, calls = separate_text_and_calls(job, text, choice=0) if "tools" in job.parameters else (text, [])
    answer: dict[str, Any] = {"role": "assistant", "content": words}
    if calls:
        answer["tool_calls"] = [_make_template_call(call) for call in calls]
    chat = (message for message in job.inputs if "source" not in message)
    return [*map(drop_response_fields, chat), answer]


def _make_template_call(call: Mapping[str, Any]) -> dict[str, Any]:
    try:
        arguments = codec.parse_json(call["function"]["arguments"].encode())
    except ApiError:  # they were cut, or the model made a mistake
        arguments = {}
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _make_status(job: Job, *, is_cut: bool) -> dict[str, Any]:
    if is_cut:
        return {"status": "incomplete", "incomplete_details": CUT}
    status = STATUSES[Status(job.status)]
    form = "tools" if requires_call(job.parameters) else "text.format"
    grammar = {"parameters.grammar.calls": "tools", "parameters.grammar.value": form, "parameters.grammar": form}
    words = {**WORDS, **grammar, "parameters.": ""}
    message = replace_beginning(job.public_detail, words)
    error = {"code": "server_error", "message": message} if status == "failed" else None
    return {"status": status, "error": error}


def _make_items(job: Job, text: str, *, is_cut: bool) -> list[dict[str, Any]]:
    """Return the items of an answer in their order: messages, and calls between them."""
    items: list[dict[str, Any]] = []
    for part in _list_parts(job, text):
        match part:
            case Text(words):
                if not items or items[-1]["type"] != "message":
                    items.append(make_message(job, len(items), "", "completed"))
                items[-1]["content"][0]["text"] += words
            case ToolCall():
                items.append(make_call_item(make_call(job, part), "completed"))
            case Arguments():
                items[-1]["arguments"] += part.text
    items = items or [make_message(job, 0, "", "completed")]
    items[-1]["status"] = "incomplete" if is_cut else "completed"
    return items


def _list_parts(job: Job, text: str) -> list[Part]:
    if "tools" not in job.parameters:
        return [Text(text)]
    reader = make_reader(job)
    return reader.read_text(text) + reader.end_text()


def _make_usage(details: Mapping[str, Any]) -> dict[str, Any] | None:
    usage = make_usage(details)
    return usage and {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
