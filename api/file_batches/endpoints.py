"""The addresses that a line of a file may name: how its body becomes a job, and how the job's answer is written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from api import codec
from api.answers.classifications import write_moderation
from api.answers.completions.completion import CHAT, TEXT, CompletionKind, count_tokens, make_completion
from api.answers.embeddings import write_openai_embeddings
from api.answers.rankings import write_ranking
from api.answers.responses.response import make_response
from api.requests.dialects.base import DialectRequest, find_model
from api.requests.dialects.embeddings import find_embedding_model, read_embedding_request
from api.requests.dialects.generation.completions import read_chat, read_text_completion
from api.requests.dialects.generation.responses import read_response_request
from api.requests.dialects.moderations import find_moderating_model, read_moderation
from api.requests.dialects.rerank import DOCUMENTS, TEXTS, find_ranking_model, read_ranking_form, read_rerank
from inference.catalog.specs import FLAG_THRESHOLD, HARMLESS_LABELS, ModelSpec
from inference.models import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The reader of bodies at one address, and the writer of the answers there.

    Each function is given the body of a line. `write` and `count_tokens` are given the line's job, which has succeeded,
    and need no catalog: the model may be gone. `write` is also given those of `options` that the model's entry had.
    """

    read: Callable[[Any], DialectRequest]  # raises `InferenceError`
    write: Callable[[Job, Any, Mapping[str, Any]], bytes]
    count_tokens: Callable[[Job, Any], tuple[int, int]]  # that the job has read and made
    inputs: str  # the field of a body that holds the inputs
    find_model: Callable[[Mapping[str, Any]], ModelSpec] = find_model  # raises `InvalidInput`, `UnknownModel`
    count_inputs: Callable[[Mapping[str, Any]], int] = lambda body: 1
    options: Collection[str] = ()  # of a model's entry, on which answers depend


def _count_listed(*fields: str, types: tuple[type, ...] = (str, list)) -> Callable[[Mapping[str, Any]], int]:
    """Return a function that counts the values of these types in the lists of a body, and 1 if it has no such list."""

    def count(body: Mapping[str, Any]) -> int:
        lists = [body[field] for field in fields if isinstance(body.get(field), list)]
        return max([1, *(sum(isinstance(each, types) for each in values) for values in lists)])

    return count


def _count_read_tokens(job: Job, body: Mapping[str, Any]) -> tuple[int, int]:
    outputs = job.output if isinstance(job.output, list) else [job.output]
    counts = (output.get("tokens") for output in outputs if isinstance(output, dict))
    return sum(count for count in counts if isinstance(count, int)), 0


def _make_completion_endpoint(kind: CompletionKind, read: Callable[[Any], DialectRequest]) -> Endpoint:
    return Endpoint(
        read=read,
        write=lambda job, body, _: codec.write_json(make_completion(kind, job, body.get("n") or 1)),
        count_tokens=lambda job, body: count_tokens(job, body.get("n") or 1),
        inputs=kind.inputs,
        count_inputs=_count_listed("prompt"),
    )


ENDPOINTS: Mapping[str, Endpoint] = {
    "/v1/chat/completions": _make_completion_endpoint(CHAT, read_chat),
    "/v1/completions": _make_completion_endpoint(TEXT, read_text_completion),
    "/v1/embeddings": Endpoint(
        read=read_embedding_request,
        write=lambda job, body, _: write_openai_embeddings(job, is_base64=body.get("encoding_format") == "base64"),
        count_tokens=_count_read_tokens,
        inputs="input",
        find_model=find_embedding_model,
        count_inputs=_count_listed("input"),
    ),
    "/v1/responses": Endpoint(
        read=read_response_request,
        write=lambda job, body, _: codec.write_json(make_response(job)),
        count_tokens=lambda job, body: count_tokens(job, 1),
        inputs="input",
    ),
    "/v1/rerank": Endpoint(
        read=read_rerank,
        write=lambda job, body, _: write_ranking(job, read_ranking_form(body)),
        count_tokens=_count_read_tokens,
        inputs=DOCUMENTS,
        find_model=find_ranking_model,
        count_inputs=_count_listed(DOCUMENTS, TEXTS, types=(str, dict)),
    ),
    "/v1/moderations": Endpoint(
        read=read_moderation,
        write=lambda job, body, options: write_moderation(job, options),
        count_tokens=_count_read_tokens,
        inputs="input",
        find_model=find_moderating_model,
        count_inputs=_count_listed("input"),
        options=(HARMLESS_LABELS, FLAG_THRESHOLD),
    ),
}
