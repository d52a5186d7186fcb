"""The form that a request wants its answer in, read from the fields of OpenAI's, vLLM's and Hugging Face's clients.

The result is the parameter `grammar` of a model that generates text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.catalog import wording
from inference.errors import InvalidInput

OPENAI = "response_format"
VLLM = "structured_outputs"
FIELDS = (OPENAI, VLLM)
FORMER = ("guided_json", "guided_regex", "guided_choice")  # fields of vLLM before 0.12
ANY_TEXT: Mapping[str, Any] = {"type": "text"}
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
VLLM_KINDS = ("json", "regex", "choice", "json_object")
TYPES = ("text", "json_object", "json_schema", "json", "regex")


def read_grammar(fields: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the grammar of a request and the field that it stands in; both are empty for a text of any form.

    Raises `InvalidInput` for a format that is not known, and for two of them.
    """
    if former := next((name for name in FORMER if fields.get(name)), ""):
        kind = former.removeprefix("guided_")
        raise InvalidInput(f'{former}: is not served; send {VLLM}: {{"{kind}": …}}.', field=former)
    found = [name for name in FIELDS if name in fields and fields[name] != ANY_TEXT]
    if len(found) > 1:
        raise InvalidInput(f"{VLLM}: send it without {OPENAI}, or {OPENAI} without it.", field=VLLM)
    if not found:
        return {}, ""
    [name] = found
    value = fields[name]
    if not isinstance(value, dict):
        raise InvalidInput(f"{name}: must be an object, not {wording.json_type_of(value)}.", field=name)
    return (_read_openai if name == OPENAI else _read_vllm)(value), name


def _read_openai(value: Mapping[str, Any]) -> dict[str, Any]:
    match value:
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return {"type": "json", "value": schema}
        case {"type": "json_schema"}:
            where = f"{OPENAI}.json_schema"
            raise InvalidInput(f'{where}: must be an object such as {{"name": "…", "schema": {{…}}}}.', field=where)
        case {"type": "json_object"}:  # with a schema under the names of llama.cpp and of huggingface_hub
            return {"type": "json", "value": value.get("schema") or value.get("value") or ANY_OBJECT}
        case {"type": "json" | "regex" as kind, "value": grammar}:  # as Text Generation Inference
            return {"type": kind, "value": grammar}
    raise InvalidInput(f"{OPENAI}.type: must be one of {', '.join(TYPES)}.", field=f"{OPENAI}.type")


def _read_vllm(value: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: each for name, each in value.items() if each not in (None, False)}
    if unknown := next((name for name in given if name not in VLLM_KINDS), ""):
        where = f"{VLLM}.{wording.quote_name(unknown)}"
        raise InvalidInput(f"{where}: is not served; send one of {', '.join(VLLM_KINDS)}.", field=where)
    if len(given) != 1:
        raise InvalidInput(f"{VLLM}: must have one of {', '.join(VLLM_KINDS)}.", field=VLLM)
    [(kind, grammar)] = given.items()
    if kind == "json_object":
        kind, grammar = "json", ANY_OBJECT
    return {"type": kind, "value": grammar}
