"""The messages of a chat, in the form of OpenAI's clients, read into what chat templates take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from api import codec
from api.errors.problems import ApiError
from api.requests.dialects.base import refuse_unserved_fields
from inference.errors import make_field_error
from inference.values.error_phrases import json_type_of

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MESSAGE = ("role", "content", "name", "annotations")  # fields that are read, then those that are ignored
FIELDS = {"assistant": (*MESSAGE, "tool_calls"), "tool": (*MESSAGE, "tool_call_id")}
PART = '{"type": "text", "text": "…"}'


def read_messages(messages: object) -> list[dict[str, Any]]:
    """Return the messages of a request. Raises `InvalidInput`."""
    if not isinstance(messages, list) or not messages:
        raise make_field_error("messages", 'must be a list such as [{"role": "user", "content": "…"}].')
    refuse_large_arguments("messages", _list_arguments(messages))
    called: dict[str, str] = {}  # names of tools by the ids of their calls
    return [_read_message(f"messages[{index}]", message, called) for index, message in enumerate(messages)]


def _read_message(where: str, message: object, called: dict[str, str]) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise make_field_error(where, f"must be an object, not {json_type_of(message)}.")
    role = read_role(f"{where}.role", message.get("role"))
    refuse_unserved_fields(where, message, FIELDS.get(role, MESSAGE))
    content, calls = message.get("content"), message.get("tool_calls")
    if role == "assistant" and content in (None, []):  # a message with tool calls, or an empty one
        content = ""
    found: dict[str, Any] = {"role": role, "content": read_content(f"{where}.content", content)}
    if role == "tool":
        found |= read_call_id(f"{where}.tool_call_id", message.get("tool_call_id"), called)
    if role == "assistant" and calls not in (None, []):
        found["tool_calls"] = _read_calls(f"{where}.tool_calls", calls, called)
    return found


def read_role(where: str, role: object) -> str:
    """Return a role as templates know it. Raises `InvalidInput`."""
    if not isinstance(role, str) or role not in ROLES:
        raise make_field_error(where, f"must be one of {', '.join(ROLES)}.")
    return ROLES[role]


def read_call_id(where: str, call_id: object, called: Mapping[str, str]) -> dict[str, str]:
    """Return the id of the call that a message answers, and the name of its tool, which some templates show.

    `called` has the names of tools by the ids of their calls. Raises `InvalidInput`.
    """
    if not isinstance(call_id, str) or call_id not in called:
        raise make_field_error(where, "must be the id of a call before this one.")
    return {"tool_call_id": call_id, "name": called[call_id]}


def _read_calls(where: str, calls: object, called: dict[str, str]) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise make_field_error(where, f"must be a list, not {json_type_of(calls)}.")
    return [_read_call(f"{where}[{index}]", call, called) for index, call in enumerate(calls)]


def _read_call(where: str, call: object, called: dict[str, str]) -> dict[str, Any]:
    match call:
        case {"id": str(call_id), "function": {"name": str(name), "arguments": str(text)}}:
            called[call_id] = name
            return make_template_tool_call(call_id, name, read_arguments(f"{where}.function.arguments", text))
    right = '{"id": "…", "type": "function", "function": {"name": "…", "arguments": "{…}"}}'
    raise make_field_error(where, f"must be a call such as {right}.")


def make_template_tool_call(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a call as templates take it: its arguments are an object, which are a JSON text for OpenAI's clients."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def read_arguments(where: str, text: str) -> dict[str, Any]:
    """Return the arguments of a call. Raises `InvalidInput`."""
    try:
        arguments = codec.parse_json(text.encode() or b"{}")
    except ApiError:
        arguments = None
    if not isinstance(arguments, dict):
        raise make_field_error(where, "must be the JSON text of an object, as a body may hold it.")
    return arguments


def refuse_large_arguments(where: str, arguments: Iterator[str]) -> None:
    """Raise `InvalidInput` if the JSON texts of all arguments together hold more values than a body may."""
    try:
        codec.refuse_too_many_values(",".join(arguments).encode(errors="surrogatepass"))
    except ApiError:
        reason = f"the arguments of all calls hold more than {codec.MAX_VALUES:,} values."
        raise make_field_error(where, reason) from None


def _list_arguments(messages: Sequence[object]) -> Iterator[str]:
    for message in messages:
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        for call in calls if isinstance(calls, list) else ():
            match call:
                case {"function": {"arguments": str(text)}}:
                    yield text


def read_content(where: str, content: object, types: Sequence[str] = ("text",), part: str = PART) -> str:
    """Return the text of a content, which is a string or a list of parts of these types.

    `part` is an example of a part, for an error. Raises `InvalidInput`.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise make_field_error(where, f"must be a string, or a list of parts of the type {types[0]}.")
    return "\n".join(_read_part(f"{where}[{index}]", each, types, part) for index, each in enumerate(content))


def _read_part(where: str, part: object, types: Sequence[str], example: str) -> str:
    if not isinstance(part, dict) or part.get("type") not in types or not isinstance(part.get("text"), str):
        raise make_field_error(where, f"must be a part such as {example}.")
    text: str = part["text"]
    return text
