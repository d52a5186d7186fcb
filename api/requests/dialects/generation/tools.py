"""The tools that a chat may call, in the form of OpenAI's clients.

They become the parameter `tools` of a model that generates text, which its chat template shows to it, and a grammar
where the request requires a call, or has a grammar for answers without one. `api.answers.completions.tool_calls` reads
the calls in an answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from api.requests.dialects.base import read_flag, refuse_unserved_fields
from api.requests.dialects.generation.answer_grammars import MORE, nest_and_close_schema
from inference.errors import make_field_error
from inference.values.error_phrases import json_type_of

FIELDS = ("tools", "tool_choice")
PARALLEL = "parallel_tool_calls"
CLOSE = "</tool_call>"  # the end of a call in the form that most chat templates show
MOST_TOOLS = 128  # OpenAI's limit
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
ARGUMENTS = ("arguments", "parameters")  # fields of a call, of which a model writes one
CHOICES = ("auto", "none", "required")
NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}  # OpenAI: of a tool without parameters
EXAMPLE = '{"type": "function", "function": {"name": "…", "parameters": {…}}}'

NAMES = {"parameters.tools": "tools", "parameters.grammar.calls": "tools"}
REQUIRED_NAMES = {"parameters.grammar.value": "tools", "parameters.grammar": "tools"}


def read_tools(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the parameters of a request with tools, and the client's names of their parts.

    Both are empty if the model is to call no tool.

    Raises `InvalidInput`.
    """
    choice, tools = fields.get("tool_choice", "auto"), fields.get("tools", [])
    if not isinstance(tools, list) or len(tools) > MOST_TOOLS:
        raise make_field_error("tools", f"must be a list of at most {MOST_TOOLS} tools.")
    read = [_read_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools)]
    by_name = {tool["function"]["name"]: tool for tool in read}
    if len(by_name) < len(read):
        raise make_field_error("tools", "each must have a name of its own.")
    required = _read_choice(choice, list(by_name))
    if choice == "none" or not read:
        return {}, {}
    parameters: dict[str, Any] = {"tools": read}
    if not required:
        return parameters, NAMES
    parameters["grammar"] = {"type": "json", "value": make_call_schema([by_name[name] for name in required])}
    return parameters, {**NAMES, **REQUIRED_NAMES}


def requires_call(parameters: Mapping[str, Any]) -> bool:
    """Return True if an answer with these parameters is a call of a tool in any case."""
    return "tools" in parameters and "calls" not in parameters.get("grammar", {"calls": {}})


def _read_tool(where: str, tool: object) -> dict[str, Any]:
    is_function = isinstance(tool, dict) and (tool.get("type") or "function") == "function"
    function = tool.get("function") if isinstance(tool, dict) and is_function else None
    if not isinstance(tool, dict) or not isinstance(function, dict):
        raise make_field_error(where, f"must be a tool such as {EXAMPLE}.")
    refuse_unserved_fields(where, tool, ("type", "function"))
    refuse_unserved_fields(f"{where}.function", function, ("name", "description", "parameters", "strict"))
    read_flag(function, "strict", f"{where}.function.")
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        reason = "must have 1 to 64 letters, digits, underscores and hyphens."
        raise make_field_error(f"{where}.function.name", reason)
    if description is not None and not isinstance(description, str):
        reason = f"must be a string, not {json_type_of(description)}."
        raise make_field_error(f"{where}.function.description", reason)
    schema = _read_schema(f"{where}.function.parameters", function.get("parameters"))
    return {"type": "function", "function": {"name": name, "description": description or "", "parameters": schema}}


def _read_schema(where: str, schema: object) -> Mapping[str, Any]:
    """Return the schema of a tool's arguments, which is that of an object."""
    if schema is None:
        return NO_ARGUMENTS
    if not isinstance(schema, dict):
        raise make_field_error(where, f"must be a JSON schema, not {json_type_of(schema)}.")
    if schema.keys().isdisjoint(("type", *MORE)):
        return {"type": "object", **({} if schema else NO_ARGUMENTS), **schema}
    if schema.get("type", "object") != "object":
        raise make_field_error(where, "must be the schema of an object, as a tool has named arguments.")
    return schema


def _read_choice(choice: object, names: list[str]) -> list[str]:
    """Return the names of the tools of which one must be called; the list is empty if none must."""
    match choice:
        case "auto" | "none":
            return []
        case "required" if names:
            return names
        case {"type": "function", "function": {"name": str(name)}} if name in names:
            return [name]
        case "required" | {"type": "function", "function": {"name": str()}}:
            raise make_field_error("tool_choice", "names a tool that is not in tools.")
    right = '{"type": "function", "function": {"name": "…"}}'
    raise make_field_error("tool_choice", f"must be one of {', '.join(CHOICES)}, or {right}.")


def make_call_schema(tools: list[dict[str, Any]], fields: Sequence[str] = ("arguments",)) -> dict[str, Any]:
    """Return the schema of a call of one of the tools, whose arguments stand in one of these fields.

    Their own schemas are definitions of it, in which references are from its root.
    """
    functions = [tool["function"] for tool in tools]
    definitions = {
        each["name"]: nest_and_close_schema(each["parameters"], f"#/$defs/{each['name']}") for each in functions
    }
    calls = [_make_one_call_schema(name, field) for name in definitions for field in fields]
    return {"$defs": definitions, "anyOf": calls}


def _make_one_call_schema(name: str, field: str) -> dict[str, Any]:
    properties = {"name": {"const": name}, field: {"$ref": f"#/$defs/{name}"}}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
