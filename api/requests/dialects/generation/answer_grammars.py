"""The form that a request wants its answer in, read from the fields of OpenAI's, vLLM's and Hugging Face's clients.

The result is the parameter `grammar` of a model that generates text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.requests.dialects.base import read_flag
from inference.errors import make_field_error
from inference.values.error_phrases import json_type_of, truncate_name
from inference.values.json_schema_parts import map_schema_parts

OPENAI = "response_format"
VLLM = "structured_outputs"
OWN = "grammar"  # the model's parameter, which may stand in the body, too
FIELDS = (OPENAI, VLLM)
FORMER = ("guided_json", "guided_regex", "guided_choice")  # fields of vLLM before 0.12
ANY_TEXT: Mapping[str, Any] = {"type": "text"}
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
KINDS = ("json", "regex", "choice")
VLLM_KINDS = (*KINDS, "json_object")
MORE = ("allOf", "anyOf", "oneOf", "$ref", "patternProperties")  # keywords that may give an object more properties
TYPES = ("text", "json_object", "json_schema", "json", "regex")


def read_grammar(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the grammar of a request, and the client's names of its parts; both are empty for a text of any form.

    Raises `InvalidInput` for a format that is not known, and for two of them.
    """
    if former := next((name for name in FORMER if fields.get(name)), ""):
        kind = former.removeprefix("guided_")
        raise make_field_error(former, f'is not served; send {VLLM}: {{"{kind}": …}}.')
    found = [name for name in (OPENAI, VLLM, OWN) if name in fields and fields[name] != ANY_TEXT]
    if len(found) > 1:
        raise make_field_error(found[1], f"send it without {found[0]}, or {found[0]} without it.")
    if not found or found == [OWN]:
        return {}, {}
    [name] = found
    value = fields[name]
    if not isinstance(value, dict):
        raise make_field_error(name, f"must be an object, not {json_type_of(value)}.")
    kind, grammar, where = (_read_openai if name == OPENAI else _read_vllm)(value)
    names = {"parameters.grammar.value": f"{name}.{where}", "parameters.grammar": name}
    return {"type": kind, "value": grammar}, names


def _read_openai(value: Mapping[str, Any]) -> tuple[str, Any, str]:
    match value:
        case {"type": "json_schema", "json_schema": {"schema": schema, **others}}:
            is_strict = read_flag({"strict": others.get("strict")}, "strict", f"{OPENAI}.json_schema.")
            return "json", nest_and_close_schema(schema) if is_strict else schema, "json_schema.schema"
        case {"type": "json_schema"}:
            reason = 'must be an object such as {"name": "…", "schema": {…}}.'
            raise make_field_error(f"{OPENAI}.json_schema", reason)
        case {"type": "json_object"}:  # with a schema under the names of llama.cpp and of huggingface_hub
            where = next((name for name in ("schema", "value") if value.get(name)), "")
            return "json", value[where] if where else ANY_OBJECT, where
        case {"type": "json" | "regex" as kind, "value": grammar}:  # as Text Generation Inference
            return kind, grammar, "value"
    raise make_field_error(f"{OPENAI}.type", f"must be one of {', '.join(TYPES)}.")


def _read_vllm(value: Mapping[str, Any]) -> tuple[str, Any, str]:
    given = {name: each for name, each in value.items() if each is not None and (name in KINDS or each is not False)}
    if unknown := next((name for name in given if name not in VLLM_KINDS), ""):
        reason = f"is not served; send one of {', '.join(VLLM_KINDS)}."
        raise make_field_error(f"{VLLM}.{truncate_name(unknown)}", reason)
    if len(given) != 1:
        raise make_field_error(VLLM, f"must have one of {', '.join(VLLM_KINDS)}.")
    [(kind, grammar)] = given.items()
    return ("json", ANY_OBJECT, kind) if kind == "json_object" else (kind, grammar, kind)


def nest_and_close_schema(schema: Any, root: str = "#", *, is_whole: bool = True) -> Any:
    """Return a schema as a part of a document, in which it stands at `root`, with objects that are closed.

    References from its own root become references from the document's. An object that does not say otherwise has only
    the properties that are named, as a function has only its parameters, and as OpenAI's `strict` means. `is_whole` is
    false for a part of an allOf.
    """
    if not isinstance(schema, dict):
        return schema
    found = map_schema_parts(
        schema, lambda keyword, part: nest_and_close_schema(part, root, is_whole=keyword != "allOf")
    )
    if isinstance(schema.get("$id"), str):
        del found["$id"]  # it would move the root
    if isinstance(reference := schema.get("$ref"), str) and (reference == "#" or reference.startswith("#/")):
        found["$ref"] = root + reference[1:]
    if is_whole and schema.get("type") == "object" and "properties" in schema and schema.keys().isdisjoint(MORE):
        found.setdefault("additionalProperties", False)
    return found
