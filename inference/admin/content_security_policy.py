"""The policy of the operator's pages on what a browser may load and what the pages must show.

A browser may load what this service serves, and nothing that is inline in the page. No page hides a part of what it
shows.
"""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from inference.telemetry import control_characters

POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "media-src 'self'",
    "connect-src 'self'", "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'",
))  # fmt: skip


class ContentSecurityPolicy:
    """Middleware that sets the policy of the operator's pages; a page that needs a stricter one has its own."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response
        self.root = reverse("admin:index")

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if request.path_info.startswith(self.root):
            response.headers.setdefault("Content-Security-Policy", POLICY)
            if not response.streaming and response.headers["Content-Type"].startswith("text/html"):
                response.content = control_characters.escape_web_page(response.content.decode())
        return response
