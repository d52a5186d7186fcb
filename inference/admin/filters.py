"""Filters and pages that stay fast on a table of millions: no DISTINCT and no COUNT over all rows."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterator
from typing import Any, cast

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from inference import errors
from inference.admin.selection import MINUTES
from inference.catalog.lookup import models
from inference.ids import first_id_at
from inference.models import ENDED, Job, Worker

COUNT_LIMIT = 10_000
FOLDED_AFTER = datetime.timedelta(hours=1)


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

    def has_output(self) -> bool:
        """Also with nothing to choose from: a filter that is left out would let all jobs through."""
        return True

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


class EndedFilter(admin.SimpleListFilter):
    """Workers that ended more than an hour ago are folded away, unless their state is asked for."""

    title, parameter_name = "ended", "ended"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("all", "all of the last week")]

    def choices(self, changelist: Any) -> Iterator[Any]:
        first, *others = super().choices(changelist)
        yield {**first, "display": "within the last hour"}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Worker]) -> QuerySet[Worker]:
        if self.value() or "state__exact" in request.GET:
            return queryset
        since = timezone.now() - FOLDED_AFTER
        return queryset.exclude(state__in=ENDED, heartbeat_at__lt=since)


class ErrorFilter(JobFilter):
    title, parameter_name = "error", "error_code"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(error.code, error.code) for error in errors.JobError.__subclasses__()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """What the index asks for is said: a database does not see that it follows."""
        return super().queryset(request, queryset).filter(error_code__gt="") if self.value() else queryset


class AcceptedFilter(admin.SimpleListFilter):
    title, parameter_name = "time", "accepted"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("10m", "last 10 minutes"), ("1h", "last hour"), ("1d", "last day"), ("7d", "last 7 days")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        minutes = MINUTES.get(self.value() or "")
        if minutes is None:
            return queryset
        return queryset.filter(id__gte=first_id_at(timezone.now() - datetime.timedelta(minutes=minutes)))
