"""Requests of clients of Cohere, Jina, vLLM, infinity and Text Embeddings Inference to rank texts, read into a job.

A request is one job of pairs. The field of the texts is `documents` for all but the last server, and `texts` there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.requests.dialects.base import (
    RETRIEVAL,
    DialectRequest,
    find_model_or_default,
    read_cohere_priority,
    read_flag,
    read_non_null_fields,
    read_truncate,
    refuse_both_fields,
    refuse_unknown_fields,
    rename_fields,
)
from api.requests.dialects.tei import refuse_too_many_inputs
from inference.catalog import tasks
from inference.catalog.neutral_values import Neutral
from inference.catalog.specs import ModelSpec
from inference.errors import make_field_error
from inference.submission.submissions import Submission

TEXTS, DOCUMENTS = "texts", "documents"
MOST_TOKENS = "max_tokens_per_doc"
FIELDS = (
    "model", "query", TEXTS, DOCUMENTS, "top_n", "return_documents", "return_text", "raw_scores", "priority",
    "truncate", MOST_TOKENS,
)  # fmt: skip
RENAMED = {"top_k": "top_n"}  # Voyage's name
# These values ask for nothing, as texts that are too long are cut at their end. Other values are refused.
NEUTRAL: Neutral = {
    **RETRIEVAL,
    "max_chunks_per_doc": (10,),
    "rank_fields": ([], ["text"]),
}
IGNORED = ("input_type", "user")
# Jobs that ask for logits share a batch, whichever scores are made from them. Details hold the number of tokens.
LOGITS = {"function_to_apply": "none", "details": True}
# All copies of the query have so many: it is stored with each text, and no body may grow to many times its size.
MOST_CHARACTERS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingForm:
    """The fields of a body that the answer of its job depends on, beside the job's output."""

    texts: list[str]
    names_texts: bool  # True if the client expects an answer of Text Embeddings Inference
    top_n: int | None
    returns_texts: bool
    is_raw: bool  # True if the client asks for logits, False if for scores from 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankRequest(DialectRequest):
    form: RankingForm

    def translate_field_names(self, text: str) -> str:
        """Return a message with the client's names. Each pair of a job holds the query, and the client sent it once."""
        _, _, rest = text.partition(": ")
        return f"query: {rest}" if rest.startswith("The query ") else DialectRequest.translate_field_names(self, text)


def read_rerank(document: object, spec: ModelSpec | None = None) -> RerankRequest:
    """Read a body.

    `spec` is the model that the address names. Without it the body names the model, or the default model that ranks
    is taken. Raises `InvalidInput`, `UnknownModel`.
    """
    given = read_non_null_fields(document)
    refuse_both_fields(given, TEXTS, DOCUMENTS)
    fields = rename_fields(given, RENAMED)
    spec = find_ranking_model(fields, spec)
    if not tasks.find_task(spec.task).ranks:
        reason = f'{spec.name!r} does not rank texts, which a model with task = "{tasks.RANKING}" does.'
        raise make_field_error("model", reason)
    refuse_unknown_fields(fields, FIELDS, NEUTRAL, IGNORED)
    form, priority = read_ranking_form(given), read_cohere_priority(fields)
    name, texts = TEXTS if form.names_texts else DOCUMENTS, form.texts
    refuse_too_many_inputs(spec, texts, name=name, priority=priority)
    query = fields.get("query")
    if not isinstance(query, str):
        raise make_field_error("query", "must be a text.")
    if len(query) * len(texts) > MOST_CHARACTERS:
        reason = f"its {len(query)} characters beside each of {len(texts)} texts are too many: shorten it."
        raise make_field_error("query", reason)
    return RerankRequest(
        submission=Submission(
            spec=spec,
            inputs=[{"text": query, "text_pair": text} for text in texts],
            parameters={**LOGITS, **read_truncate(fields), **_read_most_tokens(fields)},
            priority=priority,
        ),
        words={"parameters.max_document_tokens": MOST_TOKENS, "parameters.": "", "inputs": name},
        form=form,
    )


def find_ranking_model(fields: Mapping[str, Any], addressed: ModelSpec | None = None) -> ModelSpec:
    """Return the model that the address or the body names, or the default one.

    Raises `InvalidInput`, `UnknownModel`.
    """
    return find_model_or_default(fields, "rerank", addressed)


def read_ranking_form(document: object) -> RankingForm:
    """Read the fields of a body that say how its answer is written, whether its model is still there or not.

    Raises `InvalidInput`.
    """
    given = read_non_null_fields(document)
    refuse_both_fields(given, TEXTS, DOCUMENTS)
    name = TEXTS if TEXTS in given else DOCUMENTS
    listed = _read_list(name, given.get(name))
    return RankingForm(
        texts=[_read_text(f"{name}[{index}]", text) for index, text in enumerate(listed)],
        names_texts=name == TEXTS,
        top_n=_read_count("top_k" if "top_k" in given else "top_n", given),
        returns_texts=read_flag(given, "return_text") | read_flag(given, "return_documents"),
        is_raw=read_flag(given, "raw_scores"),
    )


def _read_list(name: str, texts: object) -> list[Any]:
    if not isinstance(texts, list) or not texts:
        raise make_field_error(name, "must be a list of one text or more.")
    return texts


def _read_text(where: str, text: Any) -> str:
    match text:
        case str() | {"text": str()}:
            return text if isinstance(text, str) else str(text["text"])
    raise make_field_error(where, 'must be a text, or {"text": "…"}.')


def _read_count(name: str, fields: Mapping[str, Any]) -> int | None:
    value = fields.get(name)
    if value is None or (type(value) is int and value > 0):
        return value
    raise make_field_error(name, "must be a whole number from 1.")


def _read_most_tokens(fields: Mapping[str, Any]) -> dict[str, int]:
    most = _read_count(MOST_TOKENS, fields)
    return {"max_document_tokens": most} if most else {}
