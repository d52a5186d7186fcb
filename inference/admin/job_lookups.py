"""The filters and the search of the list of jobs, as lookups that the row of an act can keep."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model
from django.db.models import (
    BooleanField,
    Case,
    ExpressionWrapper,
    Func,
    IntegerField,
    Q,
    QuerySet,
    TextField,
    Value,
    When,
)
from django.db.models.functions import Cast, Left
from django.http import QueryDict

from inference import clock, errors
from inference.admin import api_key_hook
from inference.fields.ids import make_first_id
from inference.fields.json_field import dumps, escape_for_database
from inference.models import Job
from inference.values.uuid_parsing import parse_uuid

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.sql.compiler import SQLCompiler

END_OF_ID = re.compile(r"…?([0-9A-Fa-f]{8,12})")
MINUTES = {"10m": 10, "1h": 60, "1d": 1440, "7d": 10_080}  # minutes by value of the filter by time
LOOKUPS = {"status__exact": "status", "priority__exact": "priority"}
SAME = ("model", "worker", "error_code", "batch", "whole", "bulk", "owner", "key_start")
OF_PARTS = {"whole", "batch", "worker"}  # filters that find parts, too
PASSED_OVER = {"p", "o", "e", "all", "_changelist_filters", "_popup"}

# Texts are in no index. A term is looked for in the newest `SCANNED` jobs, `CHUNK` in each statement, for `SCAN_S`
# seconds at most, until `FOUND` jobs have it.
SCANNED, CHUNK, FOUND, SCAN_S = 10_000, 500, 500, 2.0
BEGINNING = 200  # characters of the input, as JSON, that are searched
LARGEST = 100_000  # bytes of the largest input that is read for its beginning
OWNERS = 1000  # owners that are looked at; each may have used the same Idempotency-Key, or the same name for a key

Lookups = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Search:
    """The lookups for what a search has found, and a sentence on what it has not looked at."""

    lookups: Lookups
    limit: str = ""


class StoredSize(Func):
    """The size of a value in its row, for which PostgreSQL does not read a value that it keeps elsewhere (TOAST)."""

    function = "pg_column_size"
    output_field = IntegerField()

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any) -> Any:
        return super().as_sql(compiler, connection, function="length", **context)


def search_jobs(term: str, keys: set[str], jobs: QuerySet[Job], user: AbstractBaseUser | AnonymousUser) -> Search:
    """Find jobs by a term.

    Parts are found by their whole, by what they ran in, and by their own ids. A request's id and an Idempotency-Key are
    chosen by clients, and may look like anything else: a term that is a job's id, an owner or a key is taken for that.

    Args:
        term: What was typed.
        keys: The names of the filters that are set besides.
        jobs: The jobs that the filters let through, in which texts are looked for.
        user: The user who asks: names of keys find something for users who may look at keys.
    """
    term = escape_for_database(term.strip())
    whole: Lookups = {} if keys & OF_PARTS else {"whole__isnull": True}
    if not term:
        return Search(whole)
    if found := _find_by_id(term):
        return Search(found)
    if found := _find_by_index(term, user):
        return Search(found)
    return _search_texts(term, jobs.filter(**whole))


def _find_by_id(term: str) -> Lookups:
    """Return the lookup for an id or the end of one, or nothing if no job has it.

    The end of an id is looked for in all ids. If one job has it, the lookup is its whole id, so that there is no second
    search.
    """
    jobs = Job.objects.order_by()
    if end := END_OF_ID.fullmatch(term):
        digits = {"id__endswith": end[1].lower()}
        found = [str(pk) for pk in jobs.filter(**digits).values_list("pk", flat=True)[:2]]
        return {"id": found[0]} if len(found) == 1 else digits if found else {}
    return {"id": str(job)} if (job := parse_uuid(term)) and jobs.filter(pk=job).exists() else {}


def _find_by_index(term: str, user: AbstractBaseUser | AnonymousUser) -> Lookups:
    """Return the lookups for a term that an index has in full, or nothing if no job has it."""
    if any(error.code == term for error in errors.JobFailure.__subclasses__()):
        return {"error_code": term, "whole__isnull": True}
    jobs = Job.objects.order_by()
    for lookups in _list_index_lookups(term, user):
        if jobs.filter(**lookups).exists():
            return lookups
    names = [f"{pk}:{term}" for pk in get_user_model().objects.order_by("pk").values_list("pk", flat=True)[:OWNERS]]
    keyed = jobs.filter(idempotency_key__in=[term, f"-:{term}", *names]).values_list("pk", flat=True)[:FOUND]
    return {"id__in": found} if (found := [str(pk) for pk in keyed]) else {}


def _list_index_lookups(term: str, user: AbstractBaseUser | AnonymousUser) -> Iterator[Lookups]:
    if belongs_to := parse_uuid(term):
        yield {"bulk": str(belongs_to)}
        yield {"batch": str(belongs_to)}
    users = get_user_model()
    if owner := users.objects.filter(**{users.USERNAME_FIELD: term}).first():
        yield {"owner": str(owner.pk), "whole__isnull": True}
    if named := list(api_key_hook.issued(user).filter(name=term).values_list("start", flat=True)[:OWNERS]):
        yield {"key_start__in": named, "whole__isnull": True}
    yield {"key_start": term.removesuffix("…"), "whole__isnull": True}
    yield {"request_id": term, "whole__isnull": True}


def _search_texts(term: str, jobs: QuerySet[Job]) -> Search:
    """Find jobs by the texts of errors and the beginnings of inputs, among the newest jobs."""
    in_error = Q(error_detail__icontains=term) | Q(error_raised__icontains=term)
    in_input = Q(beginning__icontains=dumps(term)[1:-1])
    beginning = Left(Cast("inputs", TextField()), BEGINNING)
    newest = (
        jobs.order_by("-pk")
        .annotate(stored_size=StoredSize("inputs"))
        .annotate(beginning=Case(When(stored_size__lte=LARGEST, then=beginning), default=Value("")))
        .annotate(has_it=ExpressionWrapper(in_error | in_input, output_field=BooleanField()))
        .values_list("pk", "has_it")
    )
    found: list[str] = []
    looked_at, chunk, begun_s = 0, list(newest[:CHUNK]), time.monotonic()
    while True:
        looked_at += len(chunk)
        found += [str(pk) for pk, has_it in chunk if has_it]
        if len(found) >= FOUND:
            return Search({"id__in": found[:FOUND]}, f"The list has the newest {FOUND:,} jobs that match.")
        if len(chunk) < CHUNK:
            return Search({"id__in": found})
        if looked_at >= SCANNED or time.monotonic() - begun_s > SCAN_S:
            limit = f"The search covered the newest {looked_at:,} jobs that match the filters."
            return Search({"id__in": found}, limit)
        chunk = list(newest.filter(pk__lt=chunk[-1][0])[:CHUNK])


def make_lookups_from_query(query: QueryDict, user: AbstractBaseUser | AnonymousUser) -> Lookups | None:
    """Return the lookups of a list's query, or None if it has a filter that an act on all jobs does not know.

    Without that filter the act would concern more jobs than are listed.
    """
    found: Lookups = {}
    for key, value in query.items():
        if key in LOOKUPS or key in SAME:
            found |= {LOOKUPS.get(key, key): value} if value else {}  # an empty filter lets all through
        elif key == "accepted" and value in MINUTES:
            since = clock.get_database_time() - datetime.timedelta(minutes=MINUTES[value])
            found["id__gte"] = str(make_first_id(since))
        elif key not in PASSED_OVER | {"q"}:
            return None
    return _merge_lookups(found, search_jobs(query.get("q", ""), set(query), Job.objects.filter(**found), user).lookups)


def _merge_lookups(chosen: Lookups, found: Lookups) -> Lookups | None:
    """Return the lookups of both, or None if they ask for two values of one column, which no job has."""
    return None if any(key in chosen and chosen[key] != found[key] for key in found) else chosen | found
