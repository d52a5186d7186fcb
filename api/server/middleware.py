"""Middleware that every answer passes, and the dispatch of the API's requests, before Django's middleware for pages.

project/urls.py defines the API's addresses: each address whose view comes from api/urls.py, with and without a slash at
its end. All other addresses go through the whole of MIDDLEWARE: the admin, static files, pages of an app that was
added, and unknown addresses.
"""

from __future__ import annotations

import functools
import io
import logging
import re
import time
from collections.abc import Callable

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest, HttpResponse
from django.middleware.security import SecurityMiddleware
from django.urls import Resolver404, ResolverMatch, get_resolver

from api import request_id
from api.errors import cohere_tei, openai, problems
from api.server.body_limits import find_body_limit, is_refused_as_overloaded
from inference import budget
from inference.figures import tally_rows
from inference.figures.sample import SERVICE
from inference.models import Job
from inference.store import connections

logger = logging.getLogger("api.access")

PROBES = ("/health", "/healthz", "/readyz")  # load balancers send an IP address as Host
UNCOUNTED = (*PROBES, "/metrics")  # polled also while the service is idle: not in the figures
TOO_MANY_BODIES = (
    "So many bodies are being received that there is no thread for this one. Send the request again later."
)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
APP_NAME = "api"  # the app_name of api/urls.py
KEPT = 256  # characters of the longest address that is cached: any client may send long ones
SPLIT = ("PATH_INFO", "QUERY_STRING", "HTTP_HOST", "HTTP_ORIGIN", "HTTP_REFERER")  # of pages: Python caches 128 of each
LONGEST = 8192  # characters of one value of SPLIT

Answer = Callable[[HttpRequest], HttpResponse]


class RequestIds:
    """The outermost middleware (but for `Traces`): it gives every answer an id, a length and a line in the log."""

    def __init__(self, get_response: Answer) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        started = time.perf_counter()
        own_id = request_id.begin_request(request.META.get("HTTP_X_REQUEST_ID"))
        try:
            with budget.request_budget():
                response = self.get_response(request)
            response.headers[request_id.HEADER] = own_id
            if not response.streaming and response.status_code != 304:
                response.headers.setdefault("Content-Length", str(len(response.content)))
            _log(request, response, started)
            return response
        finally:
            request_id.end_request()


class Api:
    """Middleware that answers the API's addresses, with and without a trailing slash.

    Django's middleware for pages does not run for them, since it costs as much as a view.
    """

    def __init__(self, get_response: Answer) -> None:
        self.get_response = get_response
        self.secured = {scheme: make_security_headers(scheme) for scheme in ("http", "https")}

    def __call__(self, request: HttpRequest) -> HttpResponse:
        try:
            match = match_api_path(request.path_info)
            if match and request.path_info.endswith("/"):
                request.path_info = request.path = request.path_info.rstrip("/") or "/"
            answer = self._answer(request, match)
            dialect = next((each for each in (openai, cohere_tei) if each.is_client_request(request)), None)
            answer = (dialect.reshape_problem if dialect else problems.set_problem_content_type)(request, answer)
            if match and match.func is not problems.answer_not_found and request.path_info not in UNCOUNTED:
                method = request.method if request.method in METHODS else "other"
                name = dialect.get_dialect_name(request) if dialect else "service"
                kind = f"{method} {format_route(match.route)} {answer.status_code} {name}"
                tally_rows.note_tally(SERVICE, {"requests": {kind: 1}})
            for name, value in self.secured[request.scheme or "http"].items():
                answer.headers.setdefault(name, value)
            return answer
        finally:
            connections.release_connection()  # before the rest of the body is read, which a client may send slowly

    def _answer(self, request: HttpRequest, match: ResolverMatch | None) -> HttpResponse:
        """Answer a request, or refuse it if there was no room to read its body.

        A chunked body was read before this call. Any other body is read while the request is answered.
        """
        if not is_refused_as_overloaded(request.META):
            answer = find_refusal(request, is_page=not match) or (
                _call_view(request, match) if match else self._answer_page(request)
            )
            if not is_refused_as_overloaded(request.META):
                return answer
        return problems.make_problem("overloaded", TOO_MANY_BODIES)

    def _answer_page(self, request: HttpRequest) -> HttpResponse:
        """Answer an address that is not the API's, then drop the request's body.

        The user, session and messages of a page refer to the request. Without this, the body would stay in memory until
        the garbage collector runs.
        """
        response = self.get_response(request)
        release_body(request)
        if settings.DEBUG and response.status_code == 404 and not request.resolver_match:
            return problems.answer_not_found(request)  # the same as with DEBUG off, in place of Django's own page
        return response


def release_body(request: HttpRequest) -> None:
    """Drop the body of a request that others hold for longer than it is needed."""
    for name in ("_stream", "_body", "_post", "_files"):  # private, but Django has no way to drop a body
        vars(request).pop(name, None)


def _call_view(request: HttpRequest, match: ResolverMatch) -> HttpResponse:
    request.resolver_match = match
    response: HttpResponse = match.func(request, *match.args, **match.kwargs)
    return response


def match_api_path(path: str) -> ResolverMatch | None:
    """Return the API's view at an address, or None where project/urls.py has another view there, or none."""
    find = resolve_api_path if len(path) <= KEPT else resolve_api_path.__wrapped__
    try:
        return find(path.rstrip("/") or "/", settings.ROOT_URLCONF)
    except Resolver404:
        return None


@functools.lru_cache(maxsize=1024)
def resolve_api_path(path: str, urlconf: str) -> ResolverMatch:
    """Return the API's view at an address. It is cached, as the same few addresses are asked for again and again.

    Raises `Resolver404` for any other address. That result is not cached.
    """
    match = get_resolver(urlconf).resolve(path)
    if match.app_name != APP_NAME:
        raise Resolver404
    return match


@functools.cache
def format_route(pattern: str) -> str:
    """Return an address as the documentation writes it, with names in capitals for its variable parts.

    The text is cut to the length of a job's `route` field, as the API may be mounted below a long address.
    """
    written = "/" + re.sub(r"<\w+:(\w+)>", lambda part: part[1].upper(), pattern)
    return written[: Job._meta.get_field("route").max_length]


def make_security_headers(scheme: str) -> dict[str, str]:
    """Return the security headers, which Django's middleware would compute for each answer anew."""
    answer = HttpResponse()
    request = WSGIRequest({"REQUEST_METHOD": "GET", "wsgi.input": io.BytesIO(), "wsgi.url_scheme": scheme})
    SecurityMiddleware(lambda _: answer).process_response(request, answer)
    return {name: value for name, value in answer.headers.items() if name != "Content-Type"}


def find_refusal(request: HttpRequest, *, is_page: bool) -> HttpResponse | None:
    """Return the problem that refuses this request, or None if it may be answered.

    The request of a page is refused before Django looks for a CSRF token in the body: Django would store the body's
    files whatever their length.
    """
    if not request.path_info.startswith("/"):
        return problems.make_problem("bad_request", "The address must be a path, such as /v1/models.")
    if is_page and any(len(request.META.get(name, "")) > LONGEST for name in SPLIT):
        return problems.make_problem("bad_request", f"The address, or a header, is longer than {LONGEST} characters.")
    try:
        if request.path_info not in PROBES:
            request.get_host()
    except DisallowedHost:
        return problems.make_problem(
            "bad_request", "The Host header is not one of this service's names (ALLOWED_HOSTS)."
        )
    if refused := find_length_refusal(request):
        return refused
    if not is_page and request.META.get("HTTP_CONTENT_ENCODING", "identity").lower() != "identity":
        return problems.make_problem("unsupported_media_type", "Send the body as it is, without Content-Encoding.")
    return None


def find_length_refusal(request: HttpRequest) -> HttpResponse | None:
    length = request.META.get("CONTENT_LENGTH") or "0"
    limit = find_body_limit(request.META)
    if not length.isascii() or not length.isdigit():
        return problems.make_problem("bad_request", "Content-Length must be a whole number.")
    if int(length) > limit:
        return problems.make_problem("body_too_large", f"The body is larger than the {limit} bytes that are taken.")
    return None


def _log(request: HttpRequest, response: HttpResponse, started: float) -> None:
    level = logging.DEBUG if response.status_code < 400 and request.method in ("GET", "HEAD") else logging.INFO
    if logger.isEnabledFor(level):
        took_ms = (time.perf_counter() - started) * 1000
        logger.log(level, "%s %r status=%d ms=%.1f", request.method, request.path[:200], response.status_code, took_ms)
