"""Requests of Cohere's clients for vectors of texts, read into a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from api.requests.dialects.base import (
    RETRIEVAL,
    DialectRequest,
    read_cohere_priority,
    read_non_null_fields,
    refuse_unknown_fields,
)
from api.requests.dialects.embeddings import (
    OWN,
    find_embedding_model,
    require_embedding_model,
    require_texts,
    translate_input_type,
)
from inference.catalog.neutral_values import Neutral
from inference.errors import make_field_error
from inference.submission.submissions import Submission

FORMS = ("float", "base64")
CUT, WHOLE = "END", "NONE"  # values of `truncate`: cut a text that is too long at its end, or refuse it
NEUTRAL: Neutral = {**RETRIEVAL, "images": ([],), "inputs": ([],)}
FIELDS = ("model", "texts", "input_type", "embedding_types", "output_dimension", "truncate", "priority")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest(DialectRequest):
    texts: list[str]
    forms: tuple[str, ...]  # values of FORMS that were asked for; empty if the client leaves the form to the server


def read_embed(document: object) -> EmbedRequest:
    """Read a body. Raises `InvalidInput`, `UnknownModel`."""
    fields = read_non_null_fields(document)
    spec = find_embedding_model(fields)
    require_embedding_model(spec)
    refuse_unknown_fields(fields, FIELDS, NEUTRAL, ignored=("user",))
    texts = fields.get("texts")
    if not isinstance(texts, list) or not texts:
        raise make_field_error("texts", "must be a list of one text or more.")
    require_texts("texts", texts)
    parameters = {**OWN, **_read_truncate(fields.get("truncate", CUT))}
    if (kind := fields.get("input_type")) is not None:
        parameters["input_type"] = translate_input_type(kind)
    if (count := fields.get("output_dimension")) is not None:
        parameters["dimensions"] = count
    return EmbedRequest(
        submission=Submission(spec=spec, inputs=texts, parameters=parameters, priority=read_cohere_priority(fields)),
        words={"parameters.dimensions": "output_dimension", "parameters.": "", "inputs": "texts"},
        texts=texts,
        forms=_read_forms(fields.get("embedding_types", [])),
    )


def _read_truncate(value: object) -> dict[str, Any]:
    if value not in (CUT, WHOLE):
        raise make_field_error("truncate", f"must be {CUT} or {WHOLE}, as texts are cut at their end.")
    return {"truncate": False} if value == WHOLE else {}


def _read_forms(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or any(form not in FORMS for form in value):
        raise make_field_error("embedding_types", f"must be a list of {' or '.join(FORMS)}.")
    return tuple(dict.fromkeys(value))
