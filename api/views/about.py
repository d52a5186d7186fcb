"""The OpenAPI document, the page that shows it, what problem types mean, and /metrics."""

from __future__ import annotations

import functools

from django.http import HttpResponse
from django.shortcuts import render
from drf_spectacular.generators import SchemaGenerator
from rest_framework.request import Request

from api import auth, codec, errors
from api.answers.advice import WHAT_TO_DO
from api.openapi import operations
from api.views.base import ApiView
from inference.status import metrics


@functools.cache
def document() -> bytes:
    return codec.dumps(SchemaGenerator().get_schema(request=None, public=True))


class IndexView(ApiView):
    """Where to go from here."""

    is_open = True

    @operations.not_described
    def get(self, request: Request) -> HttpResponse:
        return codec.answer({"docs": "/v1/docs", "schema": "/v1/schema", "models": "/v1/models", "admin": "/admin/"})


class SchemaView(ApiView):
    is_open = True

    @operations.not_described
    def get(self, request: Request) -> HttpResponse:
        return HttpResponse(document(), content_type="application/vnd.oai.openapi+json")


class DocsView(ApiView):
    """Swagger UI, from this service: nothing is fetched from elsewhere."""

    is_open = True

    @operations.not_described
    def get(self, request: Request) -> HttpResponse:
        return render(request._request, "api/docs.html")


class ProblemView(ApiView):
    is_open = True

    @operations.about_problem
    def get(self, request: Request, code: str) -> HttpResponse:
        if code not in errors.TABLE:
            raise errors.NotFound(f"There is no problem with the code {code[:100]!r}.")
        status, title = errors.TABLE[code]
        shown = {"type": errors.TYPE_PREFIX + code, "title": title, "status": status, "code": code}
        return codec.answer({**shown, "what_to_do": WHAT_TO_DO[code]})


class MetricsView(ApiView):
    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        auth.require_staff(self.principal)

    @operations.get_metrics
    def get(self, request: Request) -> HttpResponse:
        return HttpResponse(metrics.text(), content_type=metrics.CONTENT_TYPE)
