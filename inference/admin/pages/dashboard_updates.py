"""The views that the charts of the first page ask for figures while they are looked at."""

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import path

from inference.admin.pages import dashboard
from inference.figures import series

LONGEST_NAME = 100  # characters of the name of a model


def figures_view(request: HttpRequest) -> HttpResponse:
    _see_that_they_may(request)
    name, model = request.GET.get("range", "15m"), request.GET.get("model", "")
    if name not in series.RANGES or len(model) > LONGEST_NAME:
        return JsonResponse({"error": f"range is one of {', '.join(series.RANGES)}"}, status=400)
    answer = JsonResponse(series.read_series(name, model))
    answer["Cache-Control"] = "no-store"
    return answer


def tables_view(request: HttpRequest) -> HttpResponse:
    """Return the tables of the first page."""
    _see_that_they_may(request)
    answer = render(request, "inference/now.html", dashboard.collect_dashboard())
    answer["Cache-Control"] = "no-store"
    return answer


def _see_that_they_may(request: HttpRequest) -> None:
    if not request.user.has_perm("inference.view_job"):
        raise PermissionDenied


urls = [
    path("figures", admin.site.admin_view(figures_view), name="figures"),
    path("now", admin.site.admin_view(tables_view), name="now"),
]
