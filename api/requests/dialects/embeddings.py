"""Requests of OpenAI's clients for vectors of texts, read into a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.requests.dialects.base import (
    RETRIEVAL,
    SERVICE_TIER,
    DialectRequest,
    find_model_or_default,
    read_non_null_fields,
    read_priority,
    refuse_unknown_fields,
    rename_fields,
)
from inference.catalog.neutral_values import OPENAI, Neutral, is_neutral
from inference.catalog.specs import ModelSpec
from inference.errors import make_field_error
from inference.submission.submissions import Submission

FORMATS = ("float", "base64")
RENAMED = {"output_dimension": "dimensions"}  # infinity's name
NEUTRAL: Neutral = {"dimensions": (0,)}  # infinity's client sends 0
FIELDS = ("model", "input", "encoding_format", "dimensions", "input_type", "prompt_name", SERVICE_TIER)
# This service's name of an input type, by another server's name. Types that are not here have the same name on both.
INPUT_TYPES = {"search_query": "query", "search_document": "document", "passage": "document"}
# All jobs ask for vectors in one form, so that they share batches. The web process makes lists of numbers from it.
OWN = {"encoding_format": "base64", "details": True}
TOKENS = (
    "numbers are the tokens of another model's tokenizer: send texts. In LangChain that is"
    " OpenAIEmbeddings(check_embedding_ctx_length=False)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest(DialectRequest):
    is_base64: bool


def find_embedding_model(fields: Mapping[str, Any], addressed: ModelSpec | None = None) -> ModelSpec:
    """Return the model that the address or the body names, or the default one.

    Raises `InvalidInput`, `UnknownModel`.
    """
    return find_model_or_default(fields, "embed", addressed)


def read_embedding_request(document: object, spec: ModelSpec | None = None) -> EmbeddingRequest:
    """Read a body.

    `spec` is the model that the address names. Without it the body names the model, or the default model for vectors is
    taken. Raises `InvalidInput`, `UnknownModel`, and `ApiError` if several models could be meant.
    """
    given = read_non_null_fields(document)
    fields = rename_fields(given, RENAMED)
    spec = find_embedding_model(fields, spec)
    require_embedding_model(spec)
    refuse_unknown_fields(fields, FIELDS, {**OPENAI, **RETRIEVAL})
    encoding = fields.get("encoding_format", FORMATS[0])
    if encoding not in FORMATS:
        raise make_field_error("encoding_format", f"must be one of {', '.join(FORMATS)}.")
    count, kind, prompt = (fields.get(name) for name in ("dimensions", "input_type", "prompt_name"))
    values = {
        "dimensions": None if is_neutral(NEUTRAL, "dimensions", count) else count,
        "input_type": translate_input_type(kind),
        "prompt_name": prompt,
    }
    parameters = {**OWN, **{name: value for name, value in values.items() if value is not None}}
    given_input = fields.get("input")
    texts = read_texts("input", given_input)
    return EmbeddingRequest(
        submission=Submission(spec=spec, inputs=texts, parameters=parameters, priority=read_priority(fields)),
        is_single=isinstance(given_input, str),
        words={**_name_dimensions(given), "parameters.": "", "inputs": "input"},
        is_base64=encoding == "base64",
    )


def _name_dimensions(given: Mapping[str, Any]) -> dict[str, str]:
    return {f"parameters.{own}": sent for sent, own in RENAMED.items() if sent in given}


def require_embedding_model(spec: ModelSpec) -> None:
    """Raise `InvalidInput` for a model that gives no vectors of texts."""
    if not spec.embeds:
        raise make_field_error("model", f"{spec.name!r} gives no vectors of texts: post to /v1/models/{spec.name}.")


def read_texts(where: str, given: Any) -> list[str]:
    """Return the texts of a field that is a text or a list of texts. Raises the errors of `require_texts`."""
    texts = given if isinstance(given, list) else [given]
    require_texts(where, texts)
    return texts


def require_texts(where: str, texts: list[Any]) -> None:
    """Raise `InvalidInput` if `texts` is not a list of one text or more.

    The error names the field `where`, and the place of the first item that is none.
    """
    wrong = next((index for index, text in enumerate(texts) if not isinstance(text, str)), None)
    if wrong is None and texts:
        return
    if texts and all(map(_are_tokens, texts)):
        raise make_field_error(where, TOKENS)
    if wrong is None or len(texts) == 1:
        raise make_field_error(where, "must be a text, or a list of one text or more.")
    raise make_field_error(f"{where}[{wrong}]", "must be a text.")


def translate_input_type(given: object) -> Any:
    """Return this service's name of an input type. A value that is no other server's name is returned as it is."""
    return INPUT_TYPES.get(given, given) if isinstance(given, str) else given


def _are_tokens(value: object) -> bool:
    """Return True if a value is a token's number, or a list of such numbers."""
    values = value if isinstance(value, list) else [value]
    return bool(values) and all(type(each) is int for each in values)
