"""Requests of OpenAI's clients to tell harmful texts by the labels of a model that classifies, read into a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.requests.dialects.base import (
    SERVICE_TIER,
    DialectRequest,
    ask_for_all_labels,
    find_default_model,
    find_model,
    read_non_null_fields,
    read_priority,
    refuse_unknown_fields,
)
from api.requests.dialects.generation.chat_messages import read_content
from inference.catalog.specs import HARMLESS_LABELS, ModelSpec
from inference.errors import make_field_error
from inference.submission.submissions import Submission

FIELDS = ("model", "input", SERVICE_TIER)
PART = '{"type": "text", "text": "…"}; images are not looked at here'
NEEDED = (
    "a model that classifies texts does, once the options of its table in models.toml say which of its labels are"
    f' harmless, such as {HARMLESS_LABELS} = ["neutral"], or [] if none is'
)


def read_moderation(document: object) -> DialectRequest:
    """Read a body. Without a model the default one that tells harmful texts is taken.

    Raises `InvalidInput`, `UnknownModel`.
    """
    fields = read_non_null_fields(document)
    spec = find_moderating_model(fields)
    if "moderate" not in spec.request_kinds:
        raise make_field_error("model", f"{spec.name!r} does not tell harmful texts: {NEEDED}.")
    refuse_unknown_fields(fields, FIELDS)
    given = fields.get("input")
    return DialectRequest(
        is_single=isinstance(given, str),
        submission=Submission(
            spec=spec,
            inputs=_read_texts(given),
            parameters=ask_for_all_labels(spec),
            priority=read_priority(fields),
        ),
        words={"parameters.": "", "inputs": "input"},
    )


def find_moderating_model(fields: Mapping[str, Any]) -> ModelSpec:
    """Return the model that a body names, or the default one. Raises `InvalidInput`, `UnknownModel`."""
    missing = f"no model here tells harmful texts: {NEEDED}"
    return find_model(fields) if "model" in fields else find_default_model("moderate", missing)


def _read_texts(given: Any) -> list[str]:
    """Return the texts of an input, in which a list of parts is one text."""
    if isinstance(given, list) and given and all(isinstance(part, dict) for part in given):
        return [read_content("input", given, part=PART)]
    texts = given if isinstance(given, list) else [given]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise make_field_error("input", "must be a text, a list of one text or more, or a list of parts of a text.")
    return texts
