"""Filters and pages that stay fast on a table of millions: no DISTINCT and no COUNT over all rows."""

from __future__ import annotations

import contextlib
import datetime
import functools
from collections.abc import Iterator
from typing import Any, cast

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db import DataError
from django.db.models import QuerySet
from django.http import HttpRequest

from inference import clock, errors
from inference.admin import api_key_hook
from inference.admin.job_lookups import MINUTES
from inference.catalog.lookup import get_catalog_or_empty
from inference.fields.ids import make_first_id
from inference.fields.json_field import escape_for_database
from inference.models import Job, Status, Worker
from inference.status import workers
from inference.telemetry.control_characters import escape_text
from inference.values.priority import PATIENT, Priority

COUNT_LIMIT = 10_000
PATIENT_VALUES = {str(each.value) for each in Priority if each >= PATIENT}


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # not generic at run time
    """A paginator that counts up to `COUNT_LIMIT` only, and does not count rows that fit in one page.

    The search for a few of many rows is the expensive part.
    """

    most = COUNT_LIMIT

    @functools.cached_property
    def first_page_keys(self) -> list[Any]:
        """The keys of the rows of the first page, and of one row more."""
        return list(self._rows.values_list("pk", flat=True)[: self.per_page + 1])

    @functools.cached_property
    def count(self) -> int:
        if len(self.first_page_keys) <= self.per_page:
            return len(self.first_page_keys)
        return self._rows.order_by().values("pk")[: self.most].count()

    @property
    def _rows(self) -> QuerySet[Any]:
        return cast("QuerySet[Any]", self.object_list)


class BoundedList(ChangeList):
    def format_count_found(self) -> str:
        """Return how many were found, as far as they were counted."""
        most = self.paginator.most
        return f"{most:,}+" if self.result_count >= most else f"{self.result_count:,}"

    def get_results(self, request: HttpRequest) -> None:
        """Read the rows of the page; those that fit in one page were found already.

        Raises `IncorrectLookupParameters` for what the database refuses to compare with, such as NUL or a number of 24
        digits. Such values were typed by hand.
        """
        try:
            super().get_results(request)
        except (DataError, OverflowError, ValueError) as error:
            raise IncorrectLookupParameters from error
        if not self.multi_page:
            found = self.apply_select_related(self.root_queryset.filter(pk__in=self.paginator.first_page_keys))
            self.result_list = found.order_by(*self.queryset.query.order_by)


class JobFilter(admin.SimpleListFilter):
    """A filter for jobs whose field `parameter_name` has the chosen value."""

    parameter_name: str

    def has_output(self) -> bool:
        """Return True also if there is nothing to choose from: a filter that is left out lets all jobs through."""
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        try:
            return queryset.filter(**{self.parameter_name: self.value()}) if self.value() else queryset
        except (ValidationError, ValueError) as error:  # the value is no UUID or no number
            raise IncorrectLookupParameters from error

    def list_first_and_chosen(self, rows: QuerySet[Any], most: int) -> list[tuple[str, str]]:
        """Return the first `most` of `rows` and the chosen one of them, each by its primary key and as it is shown."""
        listed = list(rows[:most])
        chosen = self.value()
        if chosen and chosen not in {str(row.pk) for row in listed}:
            with contextlib.suppress(ValidationError, ValueError, OverflowError, DataError):  # no key of this kind
                listed += rows.filter(pk=chosen)
        return [(str(row.pk), escape_text(str(row))) for row in listed]


class StatusFilter(JobFilter):
    title, parameter_name = "status", "status__exact"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, str]]:
        return [(status.value, str(status.label)) for status in Status]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Select jobs by status; those of a model that succeeded are selected by excluding the other statuses.

        Nearly all jobs have succeeded. SQLite has no statistics that show it, and would search all of them for the
        model's.
        """
        if self.value() == Status.SUCCEEDED and "model" in request.GET:
            return queryset.exclude(status__in=set(Status) - {Status.SUCCEEDED})
        return super().queryset(request, queryset)


class ModelFilter(JobFilter):
    title = parameter_name = "model"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, str]]:
        return [(name, name) for name in get_catalog_or_empty()]


class WorkerFilter(JobFilter):
    title = parameter_name = "worker"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, str]]:
        return self.list_first_and_chosen(Worker.objects.all(), 10)


class OwnerFilter(JobFilter):
    """A filter that lists a few owners to choose from; the search finds the jobs of others."""

    title = parameter_name = "owner"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, str]]:
        users = get_user_model()
        return self.list_first_and_chosen(users.objects.order_by(users.USERNAME_FIELD), 20)


class KeyFilter(JobFilter):
    """A filter that lists a few API keys to users who may look at keys.

    The search finds the jobs of other keys, deleted ones too.
    """

    title, parameter_name = "API key", "key_start"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, str]]:
        issued, chosen = api_key_hook.issued(request.user).only("start", "name"), self.value()
        listed = {key.start: str(key) for key in issued[:20]}
        if chosen and chosen not in listed:
            listed[chosen] = str(issued.filter(start=escape_for_database(chosen)).first() or f"{chosen}…")
        return [(start, escape_text(name)) for start, name in listed.items()]


class PriorityFilter(JobFilter):
    title, parameter_name = "priority", "priority__exact"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, str]]:
        return [(str(priority.value), str(priority.label)) for priority in Priority]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Select jobs by priority, with the condition of the index of priorities where that index helps.

        Most jobs are of normal priority, and in no index. For other priorities the query states that they are not
        normal, as `ErrorFilter` does for errors. It does not for a patient priority together with a filter that has a
        better index: there may be many such jobs, and SQLite would not use the better one.
        """
        found = super().queryset(request, queryset)
        is_many = self.value() in PATIENT_VALUES and {"model", "worker", "error_code"} & request.GET.keys()
        is_indexed = self.value() not in (None, "", str(Priority.NORMAL.value)) and not is_many
        return found.exclude(priority=Priority.NORMAL) if is_indexed else found


class EndedWorkerFilter(admin.SimpleListFilter):
    """A filter that hides workers that ended more than an hour ago, unless their state is asked for."""

    title, parameter_name = "ended workers", "ended"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, str]]:
        return [("all", "of the last week")]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        first, *others = super().choices(changelist)
        yield {**first, "display": "of the last hour"}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Worker]) -> QuerySet[Worker]:
        if self.value() or "state__exact" in request.GET:
            return queryset
        return workers.exclude_long_ended_workers(queryset)


class ErrorFilter(JobFilter):
    title, parameter_name = "error", "error_code"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, str]]:
        return [(error.code, error.code) for error in errors.JobFailure.__subclasses__()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Select jobs by error code, with the condition of the index, as a database does not see that it follows."""
        return super().queryset(request, queryset).filter(error_code__gt="") if self.value() else queryset


class AcceptedFilter(admin.SimpleListFilter):
    title, parameter_name = "accepted", "accepted"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, str]]:
        return [("10m", "last 10 minutes"), ("1h", "last hour"), ("1d", "last day"), ("7d", "last 7 days")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        minutes = MINUTES.get(self.value() or "")
        if minutes is None:
            return queryset
        return queryset.filter(id__gte=make_first_id(clock.get_database_time() - datetime.timedelta(minutes=minutes)))
