"""Middleware of a team's own: it sees pages, and no request of the API."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse


class Visits:
    """Counts the pages that a browser has seen, in its session."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request.session["visits"] = request.session.get("visits", 0) + 1
        return self.get_response(request)
