"""Requests of OpenAI's clients for responses, read as the chats that they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from api.requests.dialects.base import (
    LONGEST_VALUE,
    SERVICE_TIER,
    DialectRequest,
    find_model,
    read_flag,
    read_metadata,
    read_non_null_fields,
    refuse_unknown_fields,
    refuse_unserved_fields,
    replace_beginning,
)
from api.requests.dialects.generation import chat_messages, completions, tools
from inference.catalog.neutral_values import OPENAI, OPENAI_IGNORED, Neutral
from inference.catalog.sizes.lengths import RESPONSE_FIELDS
from inference.catalog.specs import ModelSpec
from inference.errors import InvalidInput, make_field_error
from inference.values.error_phrases import json_type_of

PREVIOUS = "previous_response_id"
SOURCE = {"source": "instructions"}  # of a message, which a response that follows this one does not have
FIELDS = (
    "model", "input", "instructions", "max_output_tokens", "text", *tools.FIELDS, tools.PARALLEL, "stream",
    "background", "temperature", "top_p", SERVICE_TIER, PREVIOUS, "metadata", "user",
)  # fmt: skip
# Fields that a response repeats, and their values where a request has none.
REPEATED: Mapping[str, Any] = {
    "instructions": None, "metadata": {}, tools.PARALLEL: True, PREVIOUS: None, "temperature": 1.0,
    "text": {"format": {"type": "text"}}, "tool_choice": "auto", "top_p": 1.0, "user": None,
}  # fmt: skip
# The values of other fields that ask for nothing, beside those of a chat, and fields that change no answer.
NEUTRAL: Neutral = {
    **OPENAI,
    "conversation": (), "include": ([], ["reasoning.encrypted_content"]), "prompt": (),
    "reasoning": ({}, {"effort": "none"}), "truncation": ("disabled",),
}  # fmt: skip
IGNORED = OPENAI_IGNORED | {"max_tool_calls", "stream_options"}
HIDDEN = {
    "max_new_tokens",
    "min_new_tokens",
    "grammar",
    "logprobs",
    *completions.OWN,
    *completions.TURN,
    *completions.PROMPT,
}
TEXTS = ("input_text", "output_text", "text")  # types of parts
PART = '{"type": "input_text", "text": "…"}'
WORDS = {  # the field of a chat: the field of a response
    "messages": "input", "max_tokens": "max_output_tokens", "response_format.json_schema.schema": "text.format.schema",
    "response_format.json_schema": "text.format", "response_format": "text.format", "verbosity": "text.verbosity",
}  # fmt: skip
IN_FUNCTION = re.compile(r"(tools\[\d+\])\.function\b")  # a place in a tool of a chat


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRequest(DialectRequest):
    repeated: Mapping[str, Any]  # fields of the request that the response repeats
    is_streamed: bool
    is_background: bool  # the client does not wait


def read_previous_id(document: object) -> str | None:
    """Return the id of the response that a request follows. Raises `InvalidInput`."""
    previous = read_non_null_fields(document).get(PREVIOUS)
    if previous is not None and not isinstance(previous, str):
        raise make_field_error(PREVIOUS, "must be the id of a response.")
    return previous


def read_response_request(
    document: object, spec: ModelSpec | None = None, *, before: Sequence[Mapping[str, Any]] | None = None
) -> ResponseRequest:
    """Read a request for a response.

    `before` are the messages of the response that it follows, as chat templates take them. Raises `InvalidInput`,
    `UnknownModel`.
    """
    given = read_non_null_fields(document)
    if PREVIOUS in given and before is None:
        raise make_field_error(PREVIOUS, "is not served here; send the messages themselves.")
    spec = find_model(given, spec)
    if isinstance(reasoning := given.get("reasoning"), dict):
        given["reasoning"] = read_non_null_fields(reasoning)
    own = [name for name in spec.parameters if name not in HIDDEN]
    refuse_unknown_fields(given, dict.fromkeys((*FIELDS, *own)), NEUTRAL, IGNORED)  # each once
    chat = _read_input(given, list(before or ()))
    settings = {name: given[name] for name in given if name in own}
    try:
        completion = completions.make_chat_request({**settings, **_read_settings(given)}, spec, chat)
    except InvalidInput as error:
        raise type(error)(_translate(error.message), field=_translate(error.field or "")) from None
    kept = _read_kept_fields(given, completion.submission.parameters)
    inputs = [*chat[:-1], {**chat[-1], RESPONSE_FIELDS: kept}] if kept else chat
    return ResponseRequest(
        submission=replace(completion.submission, inputs=inputs),
        repeated=read_echoed_fields(inputs),
        words={ours: _translate(theirs) for ours, theirs in completion.words.items()},
        is_streamed=completion.is_streamed,
        is_background=read_flag(given, "background"),
    )


def read_echoed_fields(chat: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of a request that its response repeats, from the chat that its job keeps."""
    kept = chat[-1].get(RESPONSE_FIELDS)
    found = {name: kept[name] for name in REPEATED if name in kept} if isinstance(kept, dict) else {}
    return {**found, "instructions": chat[0]["content"]} if chat[0].items() >= SOURCE.items() else found


def _read_kept_fields(given: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the response repeats and that nothing else in its job tells."""
    user = given.get("user", "")
    if not isinstance(user, str) or len(user) > LONGEST_VALUE:
        raise make_field_error("user", f"must be a string of at most {LONGEST_VALUE} characters.")
    fields = {**given, "text": {**REPEATED["text"], **read_non_null_fields(given.get("text", {}))}}
    fields["metadata"] = read_metadata(given) or {}
    fields[tools.PARALLEL] = read_flag(given, tools.PARALLEL, default=True)
    others = (name for name in REPEATED if name in fields and name not in ("instructions", *parameters))
    return {name: fields[name] for name in others if fields[name] != REPEATED[name]}


def _translate(text: str) -> str:
    """Return a message or field of a chat with the names of a response."""
    return IN_FUNCTION.sub(r"\1", replace_beginning(text, WORDS))


def _read_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a chat for all but the input."""
    same = ("model", "stream", "temperature", "top_p", SERVICE_TIER, tools.PARALLEL)
    chat = {name: given[name] for name in same if name in given}
    if "max_output_tokens" in given:
        chat["max_tokens"] = given["max_output_tokens"]
    chat |= _read_text(given.get("text", {}))
    if "tools" in given:
        chat["tools"] = _read_tools(given["tools"])
    match given.get("tool_choice"):
        case None:
            pass
        case str(choice):
            chat["tool_choice"] = choice
        case {"type": "function", "name": str(name)}:
            chat["tool_choice"] = {"type": "function", "function": {"name": name}}
        case _:
            right = f'one of {", ".join(tools.CHOICES)}, or {{"type": "function", "name": "…"}}'
            raise make_field_error("tool_choice", f"must be {right}.")
    return chat


def _read_text(text: object) -> dict[str, Any]:
    """Return the fields of a chat for the form of the text."""
    if not isinstance(text, dict):
        raise make_field_error("text", f"must be an object, not {json_type_of(text)}.")
    refuse_unserved_fields("text", text, ("format", "verbosity"))
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
    raise make_field_error("text.format", f"must be {right}.")


def _read_tools(given: object) -> list[Any]:
    """Return tools in the form of a chat."""
    if not isinstance(given, list):
        raise make_field_error("tools", f"must be a list, not {json_type_of(given)}.")
    return [_read_tool(f"tools[{index}]", tool) for index, tool in enumerate(given)]


def _read_tool(where: str, tool: object) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        right = '{"type": "function", "name": "…", "parameters": {…}}'
        raise make_field_error(where, f"must be a function such as {right}; other tools are not served.")
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _read_input(given: Mapping[str, Any], before: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the instructions, the messages before the input, and the input, as templates take them."""
    instructions, value = given.get("instructions"), given.get("input")
    if instructions is not None and not isinstance(instructions, str):
        raise make_field_error("instructions", "must be a string.")
    first = [{"role": "system", "content": instructions, **SOURCE}] if instructions else []
    if isinstance(value, str):
        return [*first, *map(dict, before), {"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise make_field_error("input", "must be a string, or a list of messages and calls.")
    chat_messages.refuse_large_arguments("input", _list_arguments(value))
    called = {call["id"]: call["function"]["name"] for call in _list_calls(before)}
    chat: list[dict[str, Any]] = []
    for index, item in enumerate(value):
        message = _read_item(f"input[{index}]", item, called)
        if "tool_calls" in message and chat and chat[-1]["role"] == "assistant":  # the calls of one answer
            chat[-1].setdefault("tool_calls", []).extend(message["tool_calls"])
        else:
            chat.append(message)
    return [*first, *map(dict, before), *chat]


def _list_calls(chat: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the calls in messages, which a job of another interface may have in another form."""
    for message in chat:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            match call:
                case {"id": str(), "function": {"name": str()}}:
                    yield call


def _list_arguments(items: Sequence[object]) -> Iterator[str]:
    for item in items:
        match item:
            case {"arguments": str(text)}:
                yield text


def _read_item(where: str, item: object, called: dict[str, str]) -> dict[str, Any]:
    """Return an item of the input as a message. `called` has the names of tools by the ids of their calls."""
    kind = item.get("type") or "message" if isinstance(item, dict) else None
    match item:
        case {"role": role, "content": content} if kind == "message":
            if content in ([], None) and role == "assistant":
                content = ""
            read = chat_messages.read_content(f"{where}.content", content, TEXTS, PART)
            return {"role": chat_messages.read_role(f"{where}.role", role), "content": read}
        case {"call_id": str(call_id), "name": str(name), "arguments": str(text)} if kind == "function_call":
            called[call_id] = name
            arguments = chat_messages.read_arguments(f"{where}.arguments", text)
            return {
                "role": "assistant",
                "content": "",
                "tool_calls": [chat_messages.make_template_tool_call(call_id, name, arguments)],
            }
        case {"call_id": call_id, "output": output} if kind == "function_call_output":
            read = chat_messages.read_content(f"{where}.output", output, TEXTS, PART)
            return {"role": "tool", "content": read, **chat_messages.read_call_id(f"{where}.call_id", call_id, called)}
    kinds = "a message, a function_call or a function_call_output with its fields"
    raise make_field_error(where, f"must be {kinds}; other items are not served.")
