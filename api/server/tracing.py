"""Middleware for the trace span of a request, in use where traces are on.

The span is part of the client's trace if the request has a `traceparent` header.
"""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from opentelemetry.trace import SpanKind, StatusCode

from api import request_id
from api.server.middleware import METHODS
from inference.telemetry import tracing


class Traces:
    """The outermost middleware: it opens a span for each request. The span of a stream ends before its first piece."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        method = request.method if request.method in METHODS else "_OTHER"
        with tracing.get_tracer().start_as_current_span(
            str(method),
            tracing.parse_context(request.META.get("HTTP_TRACEPARENT")),
            SpanKind.SERVER,
            {"http.request.method": str(method)},
            record_exception=False,
        ) as span:
            response = self.get_response(request)
            if request.resolver_match:
                route = f"/{request.resolver_match.route}"
                span.update_name(f"{method} {route}")
                span.set_attribute("http.route", route)
            span.set_attribute("http.response.status_code", response.status_code)
            span.set_attribute("inference.request_id", response.headers.get(request_id.HEADER, ""))
            if response.status_code >= 500:
                span.set_status(StatusCode.ERROR)
            return response
