"""Answers with vectors of texts at /openai/v1 and /v1, and below /v1/models/NAME."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse

from api import codec
from api.answers.embeddings import embeddings as written
from api.errors import ApiError
from api.openapi import operations
from api.requests import embeddings
from api.views.base import ApiView
from api.views.completions import json_of
from api.views.jobs import location, output
from api.views.models import run_in_words
from inference.catalog.lookup import spec_of
from inference.models import Status


class EmbeddingsView(ApiView):
    query_parameters = {"POST": ("timeout",)}

    @operations.not_described
    def post(self, request: HttpRequest, name: str = "") -> HttpResponse:
        asked = embeddings.read(document_of(request), spec_of(name) if name else None)
        job = run_in_words(self, request, asked)
        if job.status != Status.SUCCEEDED:
            return output(self, request, job)
        headers = {"Content-Location": f"{location(job)}/output"}
        return HttpResponse(written(job, is_base64=asked.is_base64), headers=headers, content_type=codec.CONTENT_TYPE)


def document_of(request: HttpRequest) -> Any:
    """Read the JSON of a request. Texts as lists of tokens are what makes one too large: its refusal says so."""
    try:
        return json_of(request)
    except ApiError as error:
        if error.code == codec.TOO_MANY_VALUES:
            raise ApiError(f"{error.message} If they are tokens: {embeddings.TOKENS}", error.code) from None
        raise
