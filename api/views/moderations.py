"""The view that tells harmful texts, at OpenAI's address."""

from __future__ import annotations

from functools import partial

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from api.answers.classifications import write_moderation
from api.openapi import embedding_rerank_operations as operations
from api.requests.dialects.moderations import read_moderation
from api.views.base import read_json
from api.views.models import DialectView, run_in_dialect


class ModerationView(DialectView):
    @operations.moderate
    def post(self, request: HttpRequest) -> HttpResponseBase:
        dialect_request = read_moderation(read_json(request))
        return run_in_dialect(
            self, request, dialect_request, partial(write_moderation, options=dialect_request.submission.spec.options)
        )
