"""The filters and the search of the list of jobs, as lookups that a row can keep."""

from __future__ import annotations

import datetime
import re
from typing import Any
from uuid import UUID

from django.http import QueryDict

from inference import clock
from inference.fields.ids import first_id_at
from inference.models import Job

END_OF_ID = re.compile(r"…?([0-9A-Fa-f]{8,12})")
MINUTES = {"10m": 10, "1h": 60, "1d": 1440, "7d": 10_080}  # the times of the list
LOOKUPS = {"status__exact": "status", "priority__exact": "priority"}
SAME = ("model", "worker", "error_code", "batch", "whole", "bulk")
OF_PARTS = {"whole", "batch", "worker"}  # which find parts, too
PASSED_OVER = {"p", "o", "e", "all", "_changelist_filters", "_popup"}


def search(term: str, keys: set[str]) -> dict[str, Any]:
    """`keys`: what else is asked for. Parts are found by what they belong to, ran in, and their ids. A request's id may
    look like that of a job, and a client may choose it so: what is a job's id is taken for that."""
    term = term.strip()
    if not term:
        return {} if keys & OF_PARTS else {"whole__isnull": True}
    return _by_id(term) or {"request_id": term, "whole__isnull": True}


def _by_id(term: str) -> dict[str, Any]:
    """Nothing where there is none of this id. An end is looked for in all ids, and then not again."""
    jobs = Job.objects.order_by()
    if end := END_OF_ID.fullmatch(term):
        digits = {"id__endswith": end[1].lower()}
        found = [str(pk) for pk in jobs.filter(**digits).values_list("pk", flat=True)[:2]]
        return {"id": found[0]} if len(found) == 1 else digits if found else {}
    try:
        job = UUID(term)
    except ValueError:
        return {}
    return {"id": str(job)} if jobs.filter(pk=job).exists() else {}


def of(query: QueryDict) -> dict[str, Any] | None:
    """None for a filter that acts on all do not know: they would concern more than is listed."""
    found = search(query.get("q", ""), set(query))
    for key, value in query.items():
        if key in LOOKUPS or key in SAME:
            found |= {LOOKUPS.get(key, key): value} if value else {}  # an empty filter lets all through
        elif key == "accepted" and value in MINUTES:
            since = clock.now() - datetime.timedelta(minutes=MINUTES[value])
            found["id__gte"] = str(first_id_at(since))
        elif key not in PASSED_OVER | {"q"}:
            return None
    return found
