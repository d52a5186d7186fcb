"""Whose jobs wait, and the first of them: read from an index, an entry for each owner, however many jobs wait."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import Count

from inference.models import Job, Priority, Status
from inference.status.workers import Remembered

MOST_OWNERS = 32  # that are looked at at a time
# SQLite keeps no statistics, and would read all that wait.
_INDEX = {"sqlite": "INDEXED BY job_queued_by_owners"}
# The smallest owner after another, again and again: an index has no other way to tell them apart. Then for each owner,
# priority and model whether a job waits.
_LINES = """
WITH RECURSIVE owners(owner, place) AS (
    SELECT * FROM (
        SELECT owner_id, 1 FROM inference_job {index}
        WHERE status = 'queued' AND owner_id {after} ORDER BY owner_id LIMIT 1
    ) AS first
    UNION ALL
    SELECT (
        SELECT owner_id FROM inference_job {index}
        WHERE status = 'queued' AND owner_id > owners.owner ORDER BY owner_id LIMIT 1
    ), place + 1
    FROM owners WHERE owner IS NOT NULL AND place < {most}
)
SELECT model, priority, owner FROM (
    SELECT m.column1 AS model, p.column1 AS priority, owner, (
        SELECT id FROM inference_job {index}
        WHERE status = 'queued' AND owner_id = owner AND priority = p.column1 AND model = m.column1 AND parts IS NULL
        LIMIT 1
    ) AS job
    FROM owners CROSS JOIN (VALUES {priorities}) AS p CROSS JOIN (VALUES {models}) AS m WHERE owner IS NOT NULL
    UNION ALL
    SELECT m.column1, p.column1, NULL, (
        SELECT id FROM inference_job {index}
        WHERE status = 'queued' AND owner_id IS NULL AND priority = p.column1 AND model = m.column1 AND parts IS NULL
        LIMIT 1
    )
    FROM (VALUES {priorities}) AS p CROSS JOIN (VALUES {models}) AS m
) AS found
WHERE job IS NOT NULL ORDER BY owner, priority, model
"""
_FIRST = """
SELECT * FROM (
    SELECT id, model, parameters, size, length, priority, recoveries, created_at, expires_at, owner_id
    FROM inference_job {index}
    WHERE status = 'queued' AND owner_id {owner} AND priority = %s AND model = %s AND parts IS NULL
    ORDER BY id LIMIT %s
) AS line
"""


class Line(NamedTuple):
    """The waiting jobs of one model, priority and owner."""

    model: str
    priority: int
    owner: Any  # the user's primary key as the database gives it; None for nobody's


def name_of(owner: Any) -> str | None:
    """Return how messages name an owner, whom the database gave: a key may be a number or a UUID."""
    return None if owner is None else str(Job._meta.get_field("owner").target_field.to_python(owner))


def last_of(found: Sequence[Line]) -> Any:
    """Return the owner after whom others may follow; None where these were all."""
    seen = {line.owner for line in found if line.owner is not None}
    return max(seen) if len(seen) >= MOST_OWNERS else None


_remembered: dict[str, Remembered[dict[tuple[int, Any], int]]] = {}


def counts(model: str) -> dict[tuple[int, Any], int]:
    """Return how many jobs wait, by priority and owner, as it was a second ago at most."""
    return _remembered.setdefault(model, Remembered(functools.partial(_read_counts, model)))()


def _read_counts(model: str) -> dict[tuple[int, Any], int]:
    queued = Job.objects.filter(model=model, status=Status.QUEUED).order_by()
    found = queued.values_list("priority", "owner").annotate(jobs=Count("pk"))
    return {(priority, owner): jobs for priority, owner, jobs in found}


def forget() -> None:
    _remembered.clear()


def lines(models: Collection[str], *, after: Any = None) -> list[Line]:
    """Return the lines of these models in which a job waits, of nobody and of the first `MOST_OWNERS` owners.

    Parameters:
        after: The last owner that the look before has returned, whose successors are looked at; None to begin.
    """
    sql = _LINES.format(
        index=_index(), after="IS NOT NULL" if after is None else "> %s", most=MOST_OWNERS,
        priorities=_values(Priority.values), models=_values(models),
    )  # fmt: skip
    both: list[Any] = [*Priority.values, *models]
    with connection.cursor() as cursor:
        cursor.execute(sql, [*([] if after is None else [after]), *both, *both])
        return [Line(*found) for found in cursor.fetchall()]


def first_jobs(of: Sequence[Line], *, most: int) -> list[Job]:
    """Return the first waiting jobs of each of these lines, without their inputs, at most so many of each."""
    if not of:
        return []
    sql = " UNION ALL ".join(
        _FIRST.format(index=_index(), owner="IS NULL" if line.owner is None else "= %s") for line in of
    )
    given: list[Any] = []
    for line in of:
        given += [*([] if line.owner is None else [line.owner]), line.priority, line.model, most]
    return list(Job.objects.raw(sql, given))


def _index() -> str:
    return _INDEX.get(connection.vendor, "")


def _values(of: Collection[Any]) -> str:
    return ", ".join(["(%s)"] * len(of))
