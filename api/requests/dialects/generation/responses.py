"""Requests of OpenAI's clients for responses, read as the chats that they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.requests.dialects.base import DialectRequest, read_fields, read_flag, replace_beginning
from api.requests.dialects.generation import completions
from api.requests.dialects.generation.completions import Completion
from inference.catalog import wording
from inference.catalog.neutral_values import Neutral, describe_refusal, is_neutral
from inference.catalog.specs import ModelSpec
from inference.errors import InvalidInput

PREVIOUS = "previous_response_id"
SOURCE = {"source": "instructions"}  # of a message, which a response that follows this one does not have
# Fields of a response that a chat has not: the values that ask for nothing, and those that change no answer.
NEUTRAL: Neutral = {
    "conversation": (), "include": ([], ["reasoning.encrypted_content"]), "prompt": (), "reasoning": ({},),
    "truncation": ("disabled",),
}  # fmt: skip
IGNORED = ("max_tool_calls", "metadata", "store", "stream_options")
TEXTS = ("input_text", "output_text", "text")  # types of parts
WORDS = {  # the field of a chat: the field of a response
    "messages": "input", "max_tokens": "max_output_tokens", "response_format.json_schema.schema": "text.format.schema",
    "response_format": "text.format",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRequest(DialectRequest):
    is_streamed: bool
    is_background: bool  # the client does not wait


def read_previous_id(document: object) -> str | None:
    """Return the id of the response that a request follows. Raises `InvalidInput`."""
    previous = read_fields(document).get(PREVIOUS)
    if previous is not None and not isinstance(previous, str):
        raise InvalidInput(f"{PREVIOUS}: must be the id of a response.", field=PREVIOUS)
    return previous


def read_response(
    document: object, spec: ModelSpec | None = None, *, before: Sequence[Mapping[str, Any]] | None = None
) -> ResponseRequest:
    """Read a request for a response.

    `before` are the messages of the response that it follows, as chat templates take them. Raises `InvalidInput`,
    `UnknownModel`.
    """
    given = read_fields(document)
    if given.pop(PREVIOUS, None) and before is None:
        raise InvalidInput(f"{PREVIOUS}: is not served here; send the messages themselves.", field=PREVIOUS)
    is_background = read_flag(given, "background")
    given.pop("background", None)
    for name in NEUTRAL.keys() & given.keys():
        if not is_neutral(NEUTRAL, name, value := given.pop(name)) and not _is_empty(value):
            raise InvalidInput(f"{name}: {describe_refusal(NEUTRAL, name)}", field=name)
    first, messages, places = _read_input(given)
    given = {name: value for name, value in given.items() if name not in ("input", "instructions", *IGNORED)}
    chat = {**_read_settings(given), "messages": messages}
    words = {**places, **WORDS}
    try:
        completion = completions.read_chat(chat, spec, before=[*first, *(before or ())])
    except InvalidInput as error:
        raise type(error)(
            replace_beginning(error.message, words), field=replace_beginning(error.field or "", words)
        ) from None
    return _make_request(completion, is_background=is_background)


def _make_request(completion: Completion, *, is_background: bool) -> ResponseRequest:
    words = {ours: replace_beginning(theirs, WORDS) for ours, theirs in completion.words.items()}
    return ResponseRequest(
        submission=completion.submission,
        words=words,
        is_streamed=completion.is_streamed,
        is_background=is_background,
    )


def _is_empty(value: object) -> bool:
    """Return True for an object whose fields are all null, as some clients send it."""
    return isinstance(value, dict) and all(part is None for part in value.values())


def _read_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a chat for all but the input."""
    rest = {name: value for name, value in given.items() if name not in ("max_output_tokens", "text")}
    if "max_output_tokens" in given:
        rest["max_tokens"] = given["max_output_tokens"]
    rest |= _read_text(given.get("text", {}))
    if isinstance(tools := given.get("tools"), list):
        rest["tools"] = [_read_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools)]
    match given.get("tool_choice"):
        case {"type": "function", "name": name}:
            rest["tool_choice"] = {"type": "function", "function": {"name": name}}
    return rest


def _read_text(text: object) -> dict[str, Any]:
    """Return the fields of a chat for the form of the text."""
    if not isinstance(text, dict):
        raise InvalidInput(f"text: must be an object, not {wording.json_type_of(text)}.", field="text")
    fields = {} if text.get("verbosity") is None else {"verbosity": text["verbosity"]}
    match text.get("format"):
        case None:
            return fields
        case {"type": "json_schema", "schema": schema, **others}:
            named = {"schema": schema, "strict": others.get("strict")}
            return {**fields, "response_format": {"type": "json_schema", "json_schema": named}}
        case {"type": "text" | "json_object" as kind}:
            return {**fields, "response_format": {"type": kind}}
    right = '{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "name": "…", "schema": {…}}'
    raise InvalidInput(f"text.format: must be {right}.", field="text.format")


def _read_tool(where: str, tool: object) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        right = '{"type": "function", "name": "…", "parameters": {…}}'
        raise InvalidInput(f"{where}: must be a function such as {right}; other tools are not served.", field=where)
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _read_input(given: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, str]]:
    """Return the message of the instructions, the messages of a chat, and the places of their items in the input."""
    instructions, value = given.get("instructions"), given.get("input")
    if instructions is not None and not isinstance(instructions, str):
        raise InvalidInput("instructions: must be a string.", field="instructions")
    first = [{"role": "system", "content": instructions, **SOURCE}] if instructions else []
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(items, list) or not items:
        raise InvalidInput("input: must be a string, or a list of messages and calls.", field="input")
    messages: list[dict[str, Any]] = []
    places: dict[str, str] = {}
    for index, item in enumerate(items):
        message = _read_item(f"input[{index}]", item)
        if "tool_calls" in message and messages and messages[-1]["role"] == "assistant":  # calls of one answer
            messages[-1]["tool_calls"] = [*messages[-1].get("tool_calls", ()), *message["tool_calls"]]
        else:
            messages.append(message)
        places[f"messages[{len(messages) - 1}]"] = "input" if isinstance(value, str) else f"input[{index}]"
    return first, messages, places


def _read_item(where: str, item: object) -> dict[str, Any]:
    """Return an item of the input as a message of a chat."""
    match item:
        case {"role": role, "content": content, **others} if others.get("type", "message") == "message":
            return {"role": role, "content": _read_content(f"{where}.content", content)}
        case {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}:
            function = {"name": name, "arguments": arguments}
            return {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}]}
        case {"type": "function_call_output", "call_id": call_id, "output": output}:
            return {"role": "tool", "tool_call_id": call_id, "content": _read_content(f"{where}.output", output)}
    kinds = "a message, a function_call or a function_call_output with its fields"
    raise InvalidInput(f"{where}: must be {kinds}; other items are not served.", field=where)


def _read_content(where: str, content: object) -> Any:
    if not isinstance(content, list):
        return content
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") not in TEXTS:
            path = f"{where}[{index}]"
            raise InvalidInput(f'{path}: must be a part such as {{"type": "input_text", "text": "…"}}.', field=path)
    return [{"type": "text", "text": part.get("text")} for part in content]
