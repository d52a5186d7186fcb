"""Filters and pages that stay fast on a table of millions: no DISTINCT and no COUNT over all rows."""

from __future__ import annotations

import datetime
import functools
from typing import Any, cast

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from inference import errors
from inference.catalog.lookup import models
from inference.ids import first_id_at
from inference.models import Job, Worker

COUNT_LIMIT = 10_000


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # it takes none when it runs
    """Counts to COUNT_LIMIT only."""

    most = COUNT_LIMIT

    @functools.cached_property
    def count(self) -> int:
        rows = cast("QuerySet[Any]", self.object_list)
        return rows.order_by().values("pk")[:COUNT_LIMIT].count()


class JobFilter(admin.SimpleListFilter):
    """Jobs whose field `parameter_name` has the value."""

    parameter_name: str

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return queryset.filter(**{self.parameter_name: self.value()}) if self.value() else queryset


class ModelFilter(JobFilter):
    title = parameter_name = "model"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in models()]


class WorkerFilter(JobFilter):
    title = parameter_name = "worker"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(worker.pk), str(worker)) for worker in Worker.objects.all()[:10]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        try:
            return super().queryset(request, queryset)
        except ValidationError as error:  # no UUID
            raise IncorrectLookupParameters from error


class ErrorFilter(JobFilter):
    title, parameter_name = "error", "error_code"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(error.code, error.code) for error in errors.JobError.__subclasses__()]


class AcceptedFilter(admin.SimpleListFilter):
    title, parameter_name = "time", "accepted"
    minutes = {"10m": 10, "1h": 60, "1d": 1440, "7d": 10_080}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("10m", "last 10 minutes"), ("1h", "last hour"), ("1d", "last day"), ("7d", "last 7 days")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        minutes = self.minutes.get(self.value() or "")
        if minutes is None:
            return queryset
        return queryset.filter(id__gte=first_id_at(timezone.now() - datetime.timedelta(minutes=minutes)))
