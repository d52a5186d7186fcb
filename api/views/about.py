"""Views about the service: the OpenAPI document and its page, problem types, /metrics, /healthz and /readyz."""

from __future__ import annotations

import functools

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from api import auth, codec
from api.answers.problem_advice import WHAT_TO_DO
from api.errors import problems
from api.errors.problems import ApiError
from api.openapi import operations
from api.views.base import ApiView
from inference.catalog.lookup import get_catalog_or_empty
from inference.status import metrics, readiness


@functools.lru_cache(maxsize=1)
def write_openapi_document(models: tuple[str, ...]) -> bytes:
    """Return the OpenAPI document, which lists the names of the models."""
    from drf_spectacular.generators import SchemaGenerator  # it imports Django's tests, and is seldom needed

    return codec.write_json(SchemaGenerator().get_schema(request=None, public=True))


class SchemaView(ApiView):
    is_open = True

    @operations.not_described
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(
            write_openapi_document(tuple(get_catalog_or_empty())), content_type="application/vnd.oai.openapi+json"
        )


class DocsView(ApiView):
    """The page of Swagger UI, with all its files from this service: nothing is fetched from elsewhere."""

    is_open = True

    @operations.not_described
    def get(self, request: HttpRequest) -> HttpResponse:
        return render(request, "api/docs.html")


class ProblemView(ApiView):
    is_open = True

    @operations.about_problem
    def get(self, request: HttpRequest, code: str) -> HttpResponse:
        if code not in problems.TABLE:
            raise ApiError(f"There is no problem with the code {code[:100]!r}.", "not_found")
        status, title = problems.TABLE[code]
        shown = {"type": problems.TYPE_PREFIX + code, "title": title, "status": status, "code": code}
        return codec.make_json_response({**shown, "what_to_do": WHAT_TO_DO[code]})


class MetricsView(ApiView):
    def initial(self, request: HttpRequest, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        auth.require_staff(self.principal)

    @operations.get_metrics
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(metrics.format_metrics(), content_type=metrics.CONTENT_TYPE)


class LiveView(ApiView):
    is_open = True

    @operations.is_alive
    def get(self, request: HttpRequest) -> HttpResponse:
        return codec.make_json_response({"status": "ok"})


class ReadyView(ApiView):
    is_open = True

    @operations.is_ready
    def get(self, request: HttpRequest) -> HttpResponse:
        reasons = readiness.find_problems()
        return codec.make_json_response({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)
