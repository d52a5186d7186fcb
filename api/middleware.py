"""What holds for every answer, and the API itself: it is answered before Django's middleware for pages."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.middleware.security import SecurityMiddleware
from django.urls import ResolverMatch, get_resolver

from api import errors, openai_errors, request_id
from inference import budget
from inference.store import connections
from inference.waiting.compute_slots import compute_slots

logger = logging.getLogger("api.access")

PROBES = ("/healthz", "/readyz")  # load balancers ask by address
KEPT = 256  # characters of an address or of a name that is remembered: anybody may send long ones
PAGES = ("/admin/", "/static/")  # answered in HTML, with sessions; everything else is the API
SPLIT = ("PATH_INFO", "QUERY_STRING", "HTTP_HOST", "HTTP_ORIGIN", "HTTP_REFERER")  # of pages: Python remembers 128 each
LONGEST = 8192  # characters of one of these

Answer = Callable[[HttpRequest], HttpResponse]


class RequestIds:
    """Outermost: every answer has an id and a length, and its line in the log."""

    def __init__(self, get_response: Answer) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        started = time.perf_counter()
        own_id = request_id.begin(request.META.get("HTTP_X_REQUEST_ID"))
        try:
            with budget.of_a_request():
                response = self.get_response(request)
            response.headers[request_id.HEADER] = own_id
            if not response.streaming and response.status_code != 304:
                response.headers.setdefault("Content-Length", str(len(response.content)))
            _log(request, response, started)
            return response
        finally:
            request_id.end()


class Api:
    """Answers the API's addresses, with and without a trailing slash: what only pages need costs as much as a view."""

    def __init__(self, get_response: Answer) -> None:
        self.get_response = get_response
        self.secured = {scheme: security_headers(scheme) for scheme in ("http", "https")}

    def __call__(self, request: HttpRequest) -> HttpResponse:
        try:
            if is_page(request.path_info):
                refused = refusal_of_page(request)
                return self._secured(request, refused) if refused else self._page(request)
            if request.path_info.endswith("/"):
                request.path_info = request.path = request.path_info.rstrip("/") or "/"
            answer = refusal(request) or self._view(request)
            reshaped = openai_errors.reshaped if openai_errors.speaks(request) else errors.typed
            return self._secured(request, reshaped(request, answer))
        finally:
            compute_slots.give_back()
            connections.give_back()  # before what is left of the body is read: a client may send it slowly

    def _secured(self, request: HttpRequest, answer: HttpResponse) -> HttpResponse:
        for name, value in self.secured[request.scheme or "http"].items():
            answer.headers.setdefault(name, value)
        return answer

    def _page(self, request: HttpRequest) -> HttpResponse:
        """Its user, session and messages refer to the request: the body does not wait for the garbage collector."""
        response = self.get_response(request)
        for name in ("_stream", "_body", "_post", "_files"):
            vars(request).pop(name, None)
        return response

    def _view(self, request: HttpRequest) -> HttpResponse:
        request.resolver_match = match = resolve(request.path_info)
        response: HttpResponse = match.func(request, *match.args, **match.kwargs)
        return response


def is_page(path: str) -> bool:
    return path.startswith(PAGES) or path == "/admin"


def resolve(path: str) -> ResolverMatch:
    return resolved(path) if len(path) <= KEPT else resolved.__wrapped__(path)


@functools.lru_cache(maxsize=1024)
def resolved(path: str) -> ResolverMatch:
    """The same few addresses are asked again and again."""
    return get_resolver("api.urls").resolve(path)


def security_headers(scheme: str) -> dict[str, str]:
    """What Django's middleware finds out for each answer anew."""
    answer = HttpResponse()
    SecurityMiddleware(lambda _: answer).process_response(_Request(scheme), answer)
    return {name: value for name, value in answer.headers.items() if name != "Content-Type"}


class _Request(HttpRequest):
    scheme = None

    def __init__(self, scheme: str) -> None:
        super().__init__()
        self.scheme = scheme


def refusal(request: HttpRequest) -> HttpResponse | None:
    """Why this request is not looked at any further."""
    if not request.path_info.startswith("/"):
        return errors.problem("bad_request", "The address must be a path, such as /v1/models.")
    try:
        if request.path_info not in PROBES:
            require_own_name(request)
    except DisallowedHost:
        return errors.problem("bad_request", "The Host header is not one of this service's names (ALLOWED_HOSTS).")
    if refused := refusal_of_length(request):
        return refused
    if request.META.get("HTTP_CONTENT_ENCODING", "identity") != "identity":
        return errors.problem("unsupported_media_type", "Send the body as it is, without Content-Encoding.")
    return None


def refusal_of_page(request: HttpRequest) -> HttpResponse | None:
    """Before Django looks for a token in the body, whose files it would store whatever their length."""
    if any(len(request.META.get(name, "")) > LONGEST for name in SPLIT):
        return errors.problem("bad_request", f"The address, or a header, is longer than {LONGEST} characters.")
    return refusal_of_length(request)


def refusal_of_length(request: HttpRequest) -> HttpResponse | None:
    length = request.META.get("CONTENT_LENGTH") or "0"
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    if not length.isascii() or not length.isdigit():
        return errors.problem("bad_request", "Content-Length must be a whole number.")
    if int(length) > limit:
        return errors.problem("body_too_large", f"The body is larger than the {limit} bytes that are taken.")
    return None


def require_own_name(request: HttpRequest) -> None:
    """Raises `DisallowedHost`."""
    host = request.META.get("HTTP_HOST", "")
    if 0 < len(host) <= KEPT:
        require_name(host, tuple(settings.ALLOWED_HOSTS))
    else:
        request.get_host()


@functools.lru_cache(maxsize=1024)
def require_name(host: str, names: tuple[str, ...]) -> None:
    """Where it is none of `names`. The same few are looked at again and again."""
    request = HttpRequest()
    request.META["HTTP_HOST"] = host
    request.get_host()


def _log(request: HttpRequest, response: HttpResponse, started: float) -> None:
    level = logging.DEBUG if response.status_code < 400 and request.method in ("GET", "HEAD") else logging.INFO
    if logger.isEnabledFor(level):
        took_ms = (time.perf_counter() - started) * 1000
        logger.log(level, "%s %r status=%d ms=%.1f", request.method, request.path[:200], response.status_code, took_ms)
