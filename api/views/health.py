"""/healthz, /readyz: for supervisors and load balancers, without a key."""

from __future__ import annotations

from django.http import HttpResponse
from rest_framework.request import Request

from api import codec
from api.openapi import operations
from api.views.base import ApiView
from inference.status import health


class LiveView(ApiView):
    is_open = True

    @operations.is_alive
    def get(self, request: Request) -> HttpResponse:
        return codec.answer({"status": "ok"})


class ReadyView(ApiView):
    is_open = True

    @operations.is_ready
    def get(self, request: Request) -> HttpResponse:
        reasons = health.problems()
        return codec.answer({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)
