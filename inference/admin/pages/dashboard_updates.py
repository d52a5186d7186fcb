"""The views that the charts of the first page ask for figures while they are looked at."""

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import path

from inference.admin.pages import dashboard
from inference.figures import series

LONGEST_NAME = 100  # characters of the name of a model


def serve_figures(request: HttpRequest) -> HttpResponse:
    _require_view_permission(request)
    name, model = request.GET.get("range", "15m"), request.GET.get("model", "")
    if name not in series.RANGES or len(model) > LONGEST_NAME:
        return JsonResponse({"error": f"range is one of {', '.join(series.RANGES)}"}, status=400)
    answer = JsonResponse(series.read_series(name, model))
    answer["Cache-Control"] = "no-store"
    return answer


def serve_tables(request: HttpRequest) -> HttpResponse:
    """Return the tables of the first page."""
    _require_view_permission(request)
    answer = render(request, "inference/now.html", dashboard.collect_dashboard())
    answer["Cache-Control"] = "no-store"
    return answer


def _require_view_permission(request: HttpRequest) -> None:
    if not request.user.has_perm("inference.view_job"):
        raise PermissionDenied


urls = [
    path("figures", admin.site.admin_view(serve_figures), name="figures"),
    path("now", admin.site.admin_view(serve_tables), name="now"),
]
