"""Views that rank texts by a query, at the addresses of Cohere, Jina, vLLM, infinity and Text Embeddings Inference."""

from __future__ import annotations

from functools import partial

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema_view

from api.answers.rankings import write_ranking
from api.openapi import embedding_rerank_operations as operations
from api.requests.dialects import rerank
from api.views.base import read_json
from api.views.models import DialectView, run_in_dialect
from inference.catalog.lookup import get_spec


class RerankView(DialectView):
    @operations.rerank
    def post(self, request: HttpRequest, name: str = "") -> HttpResponseBase:
        """Answer one request, whose pairs of query and text are one job."""
        rerank_request = rerank.read_rerank(read_json(request), get_spec(name) if name else None)
        return run_in_dialect(self, request, rerank_request, partial(write_ranking, form=rerank_request.form))


@extend_schema_view(post=operations.rerank_at_root)
class RootRerankView(RerankView):
    """The view at /rerank, whose problems have the statuses of Text Embeddings Inference."""


@extend_schema_view(post=operations.rerank_below)
class ModelRerankView(RerankView):
    """The view below a model."""
