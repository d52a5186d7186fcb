"""The addresses that a line of a file may name: how its body becomes a job, and how the job's answer is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from api import codec
from api.answers.classifications import write_moderation
from api.answers.completions.completion import CHAT, TEXT, CompletionKind, count_tokens, make_completion
from api.answers.embeddings import write_openai_embeddings
from api.answers.rankings import write_ranking
from api.answers.responses.response import make_response
from api.requests.dialects.base import DialectRequest
from api.requests.dialects.embeddings import read_embedding_request
from api.requests.dialects.generation.completions import read_chat, read_text_completion
from api.requests.dialects.generation.responses import read_response_request
from api.requests.dialects.moderations import read_moderation
from api.requests.dialects.rerank import read_rerank
from inference.catalog.lookup import get_last_spec
from inference.models import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    read: Callable[[Any], DialectRequest]  # raises `InferenceError`
    write: Callable[[Job, Any], bytes]  # the answer of a job that has succeeded, from it and the line's body
    count_tokens: Callable[[Job, Any], tuple[int, int]]  # that the job has read and made, from it and the line's body
    inputs: str  # the field of a body that holds the inputs


def _make_completion_endpoint(kind: CompletionKind, read: Callable[[Any], DialectRequest]) -> Endpoint:
    return Endpoint(
        read=read,
        write=lambda job, body: codec.write_json(make_completion(kind, job, body.get("n") or 1)),
        count_tokens=lambda job, body: count_tokens(job, body.get("n") or 1),
        inputs=kind.inputs,
    )


def _count_read_tokens(job: Job, body: Mapping[str, Any]) -> tuple[int, int]:
    outputs = job.output if isinstance(job.output, list) else [job.output]
    counts = (output.get("tokens") for output in outputs if isinstance(output, dict))
    return sum(count for count in counts if isinstance(count, int)), 0


def _write_embeddings(job: Job, body: Mapping[str, Any]) -> bytes:
    return write_openai_embeddings(job, is_base64=body.get("encoding_format") == "base64")


def _write_ranking(job: Job, body: Mapping[str, Any]) -> bytes:
    return write_ranking(job, read_rerank(body, get_last_spec(job.model)))


def _write_moderation(job: Job, body: Mapping[str, Any]) -> bytes:
    spec = get_last_spec(job.model)
    return write_moderation(job, spec.options if spec else {})


ENDPOINTS: Mapping[str, Endpoint] = {
    "/v1/chat/completions": _make_completion_endpoint(CHAT, read_chat),
    "/v1/completions": _make_completion_endpoint(TEXT, read_text_completion),
    "/v1/embeddings": Endpoint(
        read=read_embedding_request, write=_write_embeddings, count_tokens=_count_read_tokens, inputs="input"
    ),
    "/v1/responses": Endpoint(
        read=read_response_request,
        write=lambda job, _: codec.write_json(make_response(job)),
        count_tokens=lambda job, _: count_tokens(job, 1),
        inputs="input",
    ),
    "/v1/rerank": Endpoint(read=read_rerank, write=_write_ranking, count_tokens=_count_read_tokens, inputs="documents"),
    "/v1/moderations": Endpoint(
        read=read_moderation, write=_write_moderation, count_tokens=_count_read_tokens, inputs="input"
    ),
}
