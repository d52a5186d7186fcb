"""Views that answer with vectors of texts, as OpenAI and Cohere do."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema_view

from api import codec
from api.answers import embeddings as answers
from api.errors.problems import ApiError
from api.openapi import embedding_rerank_operations as operations
from api.requests.dialects import cohere_embeddings, embeddings
from api.views.base import read_json
from api.views.models import DialectView, run_in_dialect
from inference.catalog.lookup import get_spec


class EmbeddingsView(DialectView):
    @operations.openai_embeddings
    def post(self, request: HttpRequest, name: str = "") -> HttpResponseBase:
        embedding_request = embeddings.read_embedding_request(
            read_json_with_hint(request), get_spec(name) if name else None
        )
        write = partial(answers.write_openai_embeddings, is_base64=embedding_request.is_base64)
        return run_in_dialect(self, request, embedding_request, write)


class CohereView(DialectView):
    version: int

    def post(self, request: HttpRequest) -> HttpResponseBase:
        embed_request = cohere_embeddings.read_embed(read_json_with_hint(request))
        write = partial(answers.write_cohere_embeddings, request=embed_request, version=self.version)
        return run_in_dialect(self, request, embed_request, write)


@extend_schema_view(post=operations.cohere_embed_v1)
class FirstCohereView(CohereView):
    version = 1


@extend_schema_view(post=operations.cohere_embed_v2)
class SecondCohereView(CohereView):
    version = 2


def read_json_with_hint(request: HttpRequest) -> Any:
    """Read the JSON of a request.

    Texts that are sent as lists of tokens are what makes such a request too large, so its refusal mentions them.
    """
    try:
        return read_json(request)
    except ApiError as error:
        if error.code == codec.TOO_MANY_VALUES:
            raise ApiError(f"{error.message} If they are tokens: {embeddings.TOKENS}", error.code) from None
        raise
