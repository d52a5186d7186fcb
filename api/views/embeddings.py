"""Vectors of texts at /openai/v1 and /v1, and below /v1/models/NAME."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from api import codec
from api.answers.embeddings import embeddings as answer_of
from api.openapi import operations
from api.requests import bodies, embeddings
from api.views.base import ApiView
from api.views.completions import json_of
from api.views.jobs import location, output
from api.views.models import run
from inference.catalog.lookup import spec_of
from inference.models import Status


class EmbeddingsView(ApiView):
    query_parameters = {"POST": ("timeout",)}

    @operations.not_described
    def post(self, request: HttpRequest) -> HttpResponse:
        return embed(self, request, embeddings.read(json_of(request)))


class ModelEmbeddingsView(ApiView):
    query_parameters = {"POST": ("timeout",)}

    @operations.embed
    def post(self, request: HttpRequest, name: str) -> HttpResponse:
        return embed(self, request, embeddings.read(json_of(request), spec_of(name)))


def embed(view: ApiView, request: HttpRequest, asked: embeddings.EmbeddingRequest) -> HttpResponse:
    """Answer one request, whose list of texts is one job."""
    with asked.in_its_words():
        job = run(view, request, asked.submission, default_s=bodies.MAX_WAIT_S)
    if job.status != Status.SUCCEEDED:
        return output(view, request, job)
    headers = {"Content-Location": f"{location(job)}/output"}
    return codec.answer(answer_of(job, is_base64=asked.is_base64), headers=headers)
