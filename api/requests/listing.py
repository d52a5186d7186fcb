"""Pages of jobs, the newest first. A cursor is the id of the last job shown: pages stay right while jobs arrive."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import QuerySet
from django.utils.dateparse import parse_datetime

from api.auth import Principal
from api.errors import ApiError
from inference.catalog.specs import NAME
from inference.ids import first_id_at
from inference.models import Job, Status

PAGE, LONGEST_PAGE = 50, 500
_LIMIT = re.compile(r"[1-9][0-9]{0,2}")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is asked for, validated."""

    limit: int
    cursor: UUID | None
    model: str
    status: str
    bulk: UUID | None
    created_after: datetime.datetime | None
    created_before: datetime.datetime | None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Query:
        """Raises `ApiError`."""
        return cls(
            limit=_limit(query.get("limit", str(PAGE))),
            cursor=_uuid(query, "cursor"),
            model=_model(query.get("model", "")),
            status=_status(query.get("status", "")),
            bulk=_uuid(query, "bulk"),
            created_after=_moment(query, "created_after"),
            created_before=_moment(query, "created_before"),
        )

    def next(self, last: Job) -> str:
        """The address of the page behind `last`."""
        given = {
            "model": self.model, "status": self.status, "bulk": self.bulk,
            "created_after": self.created_after and self.created_after.isoformat(),
            "created_before": self.created_before and self.created_before.isoformat(),
        }  # fmt: skip
        kept = {name: value for name, value in given.items() if value}
        return "/v1/jobs?" + urlencode({"limit": self.limit, "cursor": last.pk, **kept})


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    jobs: list[Job]
    next: str | None


def page(principal: Principal, query: Query) -> Page:
    found = list(_matching(principal, query)[: query.limit + 1])
    shown = found[: query.limit]
    return Page(jobs=shown, next=query.next(shown[-1]) if len(found) > query.limit else None)


def _matching(principal: Principal, query: Query) -> QuerySet[Job]:
    """Times are told by ids, so that the same index serves them."""
    found = Job.objects.order_by("-pk").defer("inputs", "output", "parameters")
    if not principal.is_staff:
        found = found.filter(owner=principal.user)
    conditions = {
        "pk__lt": query.cursor,
        "model": query.model or None,
        "status": query.status or None,
        "bulk": query.bulk,
        "pk__gte": query.created_after and first_id_at(query.created_after),
    }
    found = found.filter(**{name: value for name, value in conditions.items() if value is not None})
    return found.filter(pk__lt=first_id_at(query.created_before)) if query.created_before else found


def _limit(text: str) -> int:
    if not _LIMIT.fullmatch(text) or int(text) > LONGEST_PAGE:
        raise ApiError(f"limit must be a whole number from 1 to {LONGEST_PAGE}.")
    return int(text)


def _uuid(query: Mapping[str, str], name: str) -> UUID | None:
    text = query.get(name)
    if text is None:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise ApiError(f"{name} must be an id, as an answer of this service gave it.") from None


def _model(text: str) -> str:
    if text and not NAME.fullmatch(text):
        raise ApiError("model must be a name of GET /v1/models.")
    return text


def _status(text: str) -> str:
    if text and text not in Status.values:
        raise ApiError(f"status must be one of {', '.join(Status.values)}.")
    return text


def _moment(query: Mapping[str, str], name: str) -> datetime.datetime | None:
    text = query.get(name)
    if text is None:
        return None
    try:
        moment = parse_datetime(text.replace(" ", "+"))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or moment < _EPOCH:
        raise ApiError(f"{name} must be a time with its zone, such as 2026-01-31T12:00:00Z.")
    return moment
