"""Pages of jobs, the newest first. A cursor is the id of the last job shown, so pages stay right while jobs arrive."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast
from django.utils.dateparse import parse_datetime

from api.auth import Principal
from api.errors.problems import ApiError
from api.requests.bodies import read_list_limit
from inference.catalog.specs import NAME
from inference.fields.ids import make_first_id
from inference.models import Bulk, Job, Status
from inference.store import jobs_with_outputs
from inference.values.uuid_parsing import parse_uuid

PAGE, LONGEST_PAGE = 50, 500
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def load_page(principal: Principal, query: Mapping[str, str]) -> tuple[list[Job], str | None]:
    """Return the jobs of a page, and the address of the next page or None. Raises `ApiError`."""
    limit = read_list_limit(query, PAGE, LONGEST_PAGE)
    jobs = _select_visible_jobs(principal, query)
    for name, (condition, read) in FILTERS.items():
        if name in query and (value := read(name, query[name])):
            jobs = jobs.filter(**{condition: value})
    if wants_outputs(query):
        found, is_cut = jobs_with_outputs.load_job_page(jobs, limit)
    else:
        found = list(jobs.defer("inputs", "output", "parameters")[: limit + 1])
        found, is_cut = found[:limit], len(found) > limit
    if not is_cut:
        return found, None
    following = {**dict(query.items()), "limit": limit, "cursor": found[-1].pk}
    return found, f"/v1/jobs?{urlencode(following)}"


def _select_visible_jobs(principal: Principal, query: Mapping[str, str]) -> QuerySet[Job]:
    """Return the jobs that the principal may see, the newest first.

    A bulk's jobs are those of the bulk's owner, so their owner is not a condition of the query. The order is one of a
    cast key, so that no index has it. Otherwise SQLite, which keeps no statistics, would look for the bulk's jobs among
    all jobs of that owner or of a status, as these are in order in an index.
    """
    if "bulk" not in query:
        return principal.visible_jobs.order_by("-pk")
    bulk = Bulk.objects.only("owner").filter(pk=_read_uuid("bulk", query["bulk"])).first()
    if bulk is None or not principal.may_see(bulk):
        return Job.objects.none()
    return Job.objects.filter(whole=None).order_by(Cast("pk", TextField()).desc())


def wants_outputs(query: Mapping[str, str]) -> bool:
    """Return True if the query asks for outputs. Raises `ApiError` if `outputs` is neither 0 nor 1."""
    text = query.get("outputs", "0")
    if text not in ("0", "1"):
        raise ApiError("outputs must be 1, for jobs with their outputs, or 0.")
    return text == "1"


def _read_uuid(name: str, text: str) -> UUID:
    if (found := parse_uuid(text)) is None:
        raise ApiError(f"{name} must be an id, as an answer of this service gave it.")
    return found


def _read_model(name: str, text: str) -> str:
    if text and not NAME.fullmatch(text):
        raise ApiError("model must be a name of GET /v1/models.")
    return text


def _read_status(name: str, text: str) -> str:
    if text and text not in Status.values:
        raise ApiError(f"status must be one of {', '.join(Status.values)}.")
    return text


def _convert_time_to_id(name: str, text: str) -> UUID:
    try:
        moment = parse_datetime(text.replace(" ", "+"))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or moment < _EPOCH:
        raise ApiError(f"{name} must be a time with its zone, such as 2026-01-31T12:00:00Z.")
    return make_first_id(moment)


FILTERS = {  # ids begin with their time, so that the index of ids serves times too
    "cursor": ("pk__lt", _read_uuid),
    "model": ("model", _read_model),
    "status": ("status", _read_status),
    "bulk": ("bulk", _read_uuid),
    "created_after": ("pk__gte", _convert_time_to_id),
    "created_before": ("pk__lt", _convert_time_to_id),
}
