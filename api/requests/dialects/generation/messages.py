"""The messages of a chat, in the form of OpenAI's clients, read into what chat templates take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from api.requests.dialects.base import refuse_other_fields
from inference.catalog import wording
from inference.errors import InvalidInput

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MESSAGE = ("role", "content", "name", "annotations")  # fields that are read, then those that are ignored
FIELDS = {"assistant": (*MESSAGE, "tool_calls"), "tool": (*MESSAGE, "tool_call_id")}


def read_messages(given: Mapping[str, Any], before: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Return the messages of a request. They may answer calls in the messages `before`. Raises `InvalidInput`."""
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidInput('messages: must be a list such as [{"role": "user", "content": "…"}].', field="messages")
    calls = [call for message in before for call in message.get("tool_calls", ())]
    called: dict[str, str] = {call["id"]: call["function"]["name"] for call in calls}
    return [_read_message(f"messages[{index}]", message, called) for index, message in enumerate(messages)]


def _read_message(where: str, message: object, called: dict[str, str]) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidInput(f"{where}: must be an object, not {wording.json_type_of(message)}.", field=where)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidInput(f"{where}.role: must be one of {', '.join(ROLES)}.", field=f"{where}.role")
    refuse_other_fields(where, message, FIELDS.get(role, MESSAGE))
    content = message.get("content")
    if content is None and role == "assistant":  # a message with tool calls, or an empty one
        content = ""
    found: dict[str, Any] = {"role": ROLES[role], "content": _read_content(f"{where}.content", content)}
    if role == "tool":
        found |= _read_call_id(f"{where}.tool_call_id", message.get("tool_call_id"), called)
    if calls := role == "assistant" and message.get("tool_calls"):
        found["tool_calls"] = _read_calls(f"{where}.tool_calls", calls, called)
    return found


def _read_call_id(where: str, call_id: object, called: Mapping[str, str]) -> dict[str, str]:
    """Return the id of the call that a message answers, and the name of its tool, which some templates show."""
    if not isinstance(call_id, str) or call_id not in called:
        raise InvalidInput(f"{where}: must be the id of a tool call in a message before this one.", field=where)
    return {"tool_call_id": call_id, "name": called[call_id]}


def _read_calls(where: str, calls: object, called: dict[str, str]) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise InvalidInput(f"{where}: must be a list, not {wording.json_type_of(calls)}.", field=where)
    return [_read_call(f"{where}[{index}]", call, called) for index, call in enumerate(calls)]


def _read_call(where: str, call: object, called: dict[str, str]) -> dict[str, Any]:
    """Return a call, whose arguments are an object for templates and a JSON text for OpenAI's clients."""
    match call:
        case {"id": str(call_id), "function": {"name": str(name), "arguments": str(text)}}:
            called[call_id] = name
            arguments = _read_arguments(f"{where}.function.arguments", text)
            return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    right = '{"id": "…", "type": "function", "function": {"name": "…", "arguments": "{…}"}}'
    raise InvalidInput(f"{where}: must be a call such as {right}.", field=where)


def _read_arguments(where: str, text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidInput(f"{where}: must be the JSON text of an object.", field=where)
    return arguments


def _read_content(where: str, content: object) -> str:
    """Return the text of a message's content, which is a string or a list of parts of the type text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InvalidInput(f"{where}: must be a string, or a list of parts of the type text.", field=where)
    return "\n".join(_read_part(f"{where}[{index}]", part) for index, part in enumerate(content))


def _read_part(where: str, part: object) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise InvalidInput(f'{where}: must be a part such as {{"type": "text", "text": "…"}}.', field=where)
    text: str = part["text"]
    return text
