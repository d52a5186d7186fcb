"""Views for the clients of Text Embeddings Inference, at its addresses and below /v1/models/NAME."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema_view

from api import codec
from api.answers import classifications, embeddings, tei_model_info
from api.openapi import embedding_rerank_operations as operations
from api.requests.dialects.base import DialectRequest, find_default_model
from api.requests.dialects.tei import read_embed, read_embed_all, read_predict, read_similarity
from api.views.base import ApiView
from api.views.embeddings import read_json_with_hint
from api.views.models import DialectView, run_in_dialect
from inference.catalog.lookup import get_catalog, get_spec
from inference.catalog.specs import KINDS, ModelSpec
from inference.errors import make_field_error
from inference.models import Job
from inference.status import readiness


class TextsView(DialectView):
    """A view made of a function that reads a request into a job and a function that writes the answer."""

    read_request: Callable[[Any, ModelSpec | None], DialectRequest]
    write_answer: Callable[[Job], bytes]

    def post(self, request: HttpRequest, name: str = "") -> HttpResponseBase:
        dialect_request = self.read_request(read_json_with_hint(request), get_spec(name) if name else None)
        return run_in_dialect(self, request, dialect_request, self.write_answer)


@extend_schema_view(post=operations.tei_embed)
class EmbedView(TextsView):
    read_request = staticmethod(read_embed)
    write_answer = staticmethod(embeddings.write_tei_embeddings)


@extend_schema_view(post=operations.tei_embed_all)
class EmbedAllView(TextsView):
    read_request = staticmethod(read_embed_all)
    write_answer = staticmethod(embeddings.write_token_embeddings)


class RootView(EmbedView):
    """The root of the service, where Hugging Face's clients ask for vectors if they have nothing but the host."""

    def initial(self, request: HttpRequest, *args: object, **kwargs: object) -> None:
        self.is_open = request.method in ("GET", "HEAD")
        super().initial(request, *args, **kwargs)

    def get(self, request: HttpRequest) -> HttpResponse:
        return codec.make_json_response(
            {"docs": "/v1/docs", "schema": "/v1/schema", "models": "/v1/models", "admin": "/admin/"}
        )


@extend_schema_view(post=operations.tei_similarity)
class SimilarityView(TextsView):
    read_request = staticmethod(read_similarity)
    write_answer = staticmethod(embeddings.write_similarities)


class PredictView(DialectView):
    @operations.tei_predict
    def post(self, request: HttpRequest, name: str = "") -> HttpResponseBase:
        predict_request = read_predict(read_json_with_hint(request), get_spec(name) if name else None)
        write_answer = partial(classifications.write_tei_predictions, is_batch=predict_request.is_batch)
        return run_in_dialect(self, request, predict_request, write_answer)


class InfoView(ApiView):
    @operations.tei_info
    def get(self, request: HttpRequest, name: str = "") -> HttpResponse:
        """Describe a model: at the root the one that embeds, or the one that classifies or ranks if none embeds."""
        kinds = {kind for spec in get_catalog().values() for kind in spec.request_kinds}
        spec = get_spec(name) if name else find_default_model(next(filter(kinds.__contains__, KINDS), KINDS[0]))
        if not spec.request_kinds:
            raise make_field_error("model", f"{spec.name!r} is described by GET /v1/models/{spec.name}.")
        return codec.make_json_response(tei_model_info.make_model_info(spec))


class HealthView(ApiView):
    is_open = True

    @operations.tei_health
    def get(self, request: HttpRequest) -> HttpResponse:
        if readiness.find_problems():
            return codec.make_json_response({"error": "unhealthy", "error_type": "unhealthy"}, status=503)
        return HttpResponse(b"", content_type="text/plain")
