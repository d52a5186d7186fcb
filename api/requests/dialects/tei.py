"""Requests of clients of Text Embeddings Inference to embed, compare and classify texts, read into jobs.

Their server has one model, which they do not name. The field `model` is accepted all the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.errors.problems import ApiError
from api.requests.dialects.base import (
    RETRIEVAL,
    DialectRequest,
    ask_for_all_labels,
    find_model_or_default,
    read_flag,
    read_non_null_fields,
    read_truncate,
    refuse_unknown_fields,
)
from api.requests.dialects.embeddings import OWN, read_texts, require_texts
from inference.catalog import request_validation
from inference.catalog.neutral_values import CUT, is_neutral
from inference.catalog.specs import ModelSpec
from inference.errors import make_field_error
from inference.submission import split_jobs
from inference.submission.submissions import Submission
from inference.values.priority import Priority

EMBED_SETTINGS = ("normalize", "prompt_name", "truncate", "dimensions")
TOKENIZER_SETTINGS = ("prompt_name", "truncate")
WORDS = {"parameters.": ""}
IGNORED = ("user",)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictRequest(DialectRequest):
    is_batch: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarityRequest(DialectRequest):
    """A request whose job has the source first, and then the sentences."""

    def translate_place(self, place: re.Match[str]) -> str:
        index = int(place[1])
        return f"inputs.sentences[{index - 1}]" if index else "inputs.source_sentence"


def read_embed(document: object, spec: ModelSpec | None = None) -> DialectRequest:
    """Read a request for vectors. Raises `InvalidInput`, `UnknownModel`."""
    return _read_texts(document, spec, EMBED_SETTINGS, {})


def read_embed_all(document: object, spec: ModelSpec | None = None) -> DialectRequest:
    """Read a request for a vector of each token. Raises the same errors as `read_embed`."""
    return _read_texts(document, spec, TOKENIZER_SETTINGS, {"pooling": "none"})


def _read_texts(
    document: object, spec: ModelSpec | None, settings: tuple[str, ...], more: Mapping[str, Any]
) -> DialectRequest:
    fields, spec = _read_fields_and_model(document, spec, "embed", ("inputs", *settings))
    inputs = fields.get("inputs")
    texts = read_texts("inputs", inputs)
    refuse_too_many_inputs(spec, texts)
    parameters = {**OWN, **more, **_read_settings(fields, settings)}
    return DialectRequest(
        submission=Submission(spec=spec, inputs=texts, parameters=parameters),
        words=WORDS,
        is_single=isinstance(inputs, str),
    )


def read_similarity(document: object, spec: ModelSpec | None = None) -> DialectRequest:
    """Read a request to compare one text with others. Their vectors are one job.

    Raises the same errors as `read_embed`.
    """
    fields, spec = _read_fields_and_model(document, spec, "embed", ("inputs", "parameters", *TOKENIZER_SETTINGS))
    given = fields.get("parameters", {})
    if misplaced := next((name for name in TOKENIZER_SETTINGS if name in fields), None):
        raise make_field_error(misplaced, "belongs within parameters.")
    if not isinstance(given, dict):
        raise make_field_error("parameters", "must be an object.")
    refuse_unknown_fields(given, TOKENIZER_SETTINGS, CUT, ignored=(), where="parameters.")
    return make_similarity_request(spec, fields.get("inputs"), _read_settings(given, TOKENIZER_SETTINGS))


def make_similarity_request(spec: ModelSpec, inputs: Any, parameters: Mapping[str, Any]) -> DialectRequest:
    """Make a request from {"source_sentence", "sentences"}. Raises `InvalidInput`."""
    if parameters.get("pooling") == "none":
        raise make_field_error("parameters.pooling", "with none there is no vector of a text to compare; leave it out.")
    match inputs:
        case {"source_sentence": str(source), "sentences": list(sentences)} if len(inputs) == 2:
            require_texts("inputs.sentences", sentences)
            refuse_too_many_inputs(spec, [source, *sentences])
            request_validation.validate_parameters(spec, parameters)  # before some of them are replaced
            of_length_one = {**parameters, **OWN, "normalize": True}
            submission = Submission(spec=spec, inputs=[source, *sentences], parameters=of_length_one)
            return SimilarityRequest(submission=submission, words={})
    raise make_field_error("inputs", 'must be {"source_sentence": "a text", "sentences": ["another", …]}.')


def read_predict(document: object, spec: ModelSpec | None = None) -> PredictRequest:
    """Read a request for the labels of a text, of a pair of texts, or of a list of lists of one or two texts.

    Raises the same errors as `read_embed`.
    """
    fields, spec = _read_fields_and_model(document, spec, "predict", ("inputs", "raw_scores", "truncate"))
    given: Any = fields.get("inputs")
    is_batch = isinstance(given, list) and any(isinstance(each, list) for each in given)
    parts = {f"inputs[{place}]": each for place, each in enumerate(given)} if is_batch else {"inputs": given}
    scores = {"function_to_apply": "none"} if read_flag(fields, "raw_scores") else {}
    refuse_too_many_inputs(spec, list(parts))
    return PredictRequest(
        submission=Submission(
            spec=spec,
            inputs=[_read_sequence(*part) for part in parts.items()],
            parameters={**scores, **ask_for_all_labels(spec), **read_truncate(fields)},
        ),
        words=WORDS,
        is_single=not is_batch,
        is_batch=is_batch,
    )


def _read_fields_and_model(
    document: object, spec: ModelSpec | None, kind: str, known: tuple[str, ...]
) -> tuple[dict[str, Any], ModelSpec]:
    fields = read_non_null_fields(document)
    spec = find_model_or_default(fields, kind, spec)
    if kind not in spec.request_kinds:
        raise make_field_error("model", f"{spec.name!r} does not answer this: post to /v1/models/{spec.name}.")
    refuse_unknown_fields(fields, ("model", *known), RETRIEVAL, IGNORED)
    return fields, spec


def _read_settings(fields: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    """Return the known fields as parameters of the model, without those whose value asks for nothing.

    These are left to the model, which may not have such a parameter.
    """
    return {name: fields[name] for name in known if name in fields and not is_neutral(CUT, name, fields[name])}


def refuse_too_many_inputs(
    spec: ModelSpec, inputs: list[Any], *, name: str = "inputs", priority: Priority = Priority.NORMAL
) -> None:
    """Raise `ApiError` for more texts than one job may have: these clients then send fewer at once."""
    if len(inputs) > (most := split_jobs.compute_max_queued_inputs(spec, priority)):
        raise ApiError(f"{name}: at most {most} texts are answered at once, not {len(inputs)}.", "body_too_large")


def _read_sequence(where: str, given: object) -> Any:
    match given:
        case str(text) | [str(text)]:
            return text
        case [str(text), str(pair)]:
            return {"text": text, "text_pair": pair}
    raise make_field_error(where, "must be a text, or a list of two that are one pair.")
