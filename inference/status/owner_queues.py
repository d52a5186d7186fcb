"""Queries for the owners whose jobs wait, and for the first of these jobs.

They read an index, one entry for each owner, however many jobs wait.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import connection, transaction

from inference.models import Job, Status
from inference.status.workers import Remembered
from inference.values.priority import Priority

MOST_OWNERS = 32  # owners that one query looks at
MOST_COUNTED = 10_000  # waiting jobs of a model that are counted at most
# SQLite keeps no statistics, and would read all waiting jobs without the hint.
_INDEX = {"sqlite": "INDEXED BY job_queued_by_owners"}
# PostgreSQL's statistics may be older than all the waiting jobs; then it would read and sort these. The conditions
# compare rows in the order of this index, for which every other plan sorts: without sorting only this plan is left.
_WITHOUT_SORTING = "SET LOCAL enable_sort = off; SET LOCAL enable_incremental_sort = off"
_IS_ONE = {"postgresql": "({0}) >= ({1}) AND ({0}) <= ({1})"}
_ORDER = "ORDER BY owner_id, priority, model, id"
# First the distinct owners, each as the smallest one after the last: an index has no other way to list them. Then, for
# each owner, priority and model, whether a job waits.
_LINES = """
WITH RECURSIVE owners(owner, place) AS (
    SELECT * FROM (
        SELECT owner_id, 1 FROM inference_job {index}
        WHERE status = 'queued' AND owner_id {after} {order} LIMIT 1
    ) AS first
    UNION ALL
    SELECT (
        SELECT owner_id FROM inference_job {index}
        WHERE status = 'queued' AND owner_id > owners.owner {order} LIMIT 1
    ), place + 1
    FROM owners WHERE owner IS NOT NULL AND place < {most}
)
SELECT model, priority, owner FROM (
    SELECT m.column1 AS model, p.column1 AS priority, owner, (
        SELECT id FROM inference_job {index}
        WHERE status = 'queued' AND {is_in_line} AND parts IS NULL {order} LIMIT 1
    ) AS job
    FROM owners CROSS JOIN (VALUES {priorities}) AS p CROSS JOIN (VALUES {models}) AS m WHERE owner IS NOT NULL
    UNION ALL
    SELECT m.column1, p.column1, NULL, (
        SELECT id FROM inference_job {index}
        WHERE status = 'queued' AND owner_id IS NULL AND {is_in_nobodys} AND parts IS NULL {order} LIMIT 1
    )
    FROM (VALUES {priorities}) AS p CROSS JOIN (VALUES {models}) AS m
    UNION ALL
    SELECT NULL, NULL, owner, NULL FROM owners WHERE place = {most}
) AS found
WHERE job IS NOT NULL OR (model IS NULL AND owner IS NOT NULL)
"""
_FIRST = """
SELECT * FROM (
    SELECT id, model, parameters, size, length, priority, recoveries, created_at, expires_at, owner_id
    FROM inference_job {index}
    WHERE status = 'queued' AND {is_in_line} AND parts IS NULL {order} LIMIT %s
) AS line
"""


class OwnerQueue(NamedTuple):
    """The waiting jobs of one model, priority and owner."""

    model: str
    priority: int
    owner: Any  # the user's primary key as the database returns it; None for jobs without an owner


def format_owner_id(owner: Hashable) -> str | None:
    """Return the name of an owner in messages, from the primary key as the database returned it.

    The key may be a number or a UUID.
    """
    return None if owner is None else str(Job._meta.get_field("owner").target_field.to_python(owner))


class _Counted(NamedTuple):
    jobs: Mapping[tuple[int, Any], int]  # their number by priority and owner
    below: float  # jobs of this priority number and of larger ones are not all counted


_remembered: dict[str, Remembered[_Counted]] = {}


def count_waiting_jobs(model: str, priority: int) -> Mapping[tuple[int, Any], int] | None:
    """Return how many jobs of this priority and above wait, by priority and owner, as of a second ago at most.

    It is None if more than `MOST_COUNTED` of them wait, as counting these would take long. Jobs of lower priorities may
    be among them.
    """
    counted = _remembered.setdefault(model, Remembered(functools.partial(_count_first_jobs, model)))()
    return counted.jobs if priority < counted.below else None


def _count_first_jobs(model: str) -> _Counted:
    """Count the first jobs that wait, up to `MOST_COUNTED`, the highest priority first."""
    queued = Job.objects.filter(model=model, status=Status.QUEUED).order_by("priority", "pk")
    found = list(queued.values_list("priority", "owner")[: MOST_COUNTED + 1])
    below = found[-1][0] if len(found) > MOST_COUNTED else math.inf
    return _Counted(Counter(line for line in found if line[0] < below), below)


@contextlib.contextmanager
def disable_sorting() -> Iterator[None]:
    """Keep PostgreSQL from sorting in the block, which leaves it only plans that read the index in its order.

    SQLite sorts as before: each statement tells it which index to read.
    """
    if connection.vendor != "postgresql":
        yield
        return
    with transaction.atomic(savepoint=False), connection.cursor() as cursor:
        cursor.execute(_WITHOUT_SORTING)
        yield


def find_owner_queues_with_jobs(models: Collection[str], *, after: Any = None) -> tuple[list[OwnerQueue], Any]:
    """Return the lines of these models in which a job waits, and the last owner that was looked at.

    The lines are those without an owner and those of the first `MOST_OWNERS` owners. The last owner is None if these
    were all owners.

    Parameters:
        after: The last owner that the call before returned: the owners after it are looked at. None to begin.
    """
    sql = _LINES.format(
        index=_get_index_hint(),
        order=_ORDER,
        after="IS NOT NULL" if after is None else "> %s",
        most=MOST_OWNERS,
        priorities=_make_value_placeholders(Priority.values),
        models=_make_value_placeholders(models),
        is_in_line=_make_equality_sql({"owner_id": "owner", "priority": "p.column1", "model": "m.column1"}),
        is_in_nobodys=_make_equality_sql({"priority": "p.column1", "model": "m.column1"}),
    )
    both: list[Any] = [*Priority.values, *models]
    with connection.cursor() as cursor:
        cursor.execute(sql, [*([] if after is None else [after]), *both, *both])
        found = [OwnerQueue(*each) for each in cursor.fetchall()]
    last = next((line.owner for line in found if line.model is None), None)
    return [line for line in found if line.model is not None], last


def read_first_jobs(of: Sequence[OwnerQueue], *, most: int) -> list[Job]:
    """Return the first waiting jobs of each of these lines, without their inputs, at most `most` of each."""
    if not of:
        return []
    sql: list[str] = []
    given: list[Any] = []
    for line in of:
        is_in_line = _make_equality_sql({"priority": "%s", "model": "%s"})
        key: list[Any] = [line.priority, line.model]
        if line.owner is None:
            is_in_line = f"owner_id IS NULL AND {is_in_line}"
        else:
            is_in_line = _make_equality_sql({"owner_id": "%s", "priority": "%s", "model": "%s"})
            key.insert(0, line.owner)
        sql.append(_FIRST.format(index=_get_index_hint(), order=_ORDER, is_in_line=is_in_line))
        given += [*key * (is_in_line.count("%s") // len(key)), most]
    return list(Job.objects.raw(" UNION ALL ".join(sql), given))


def _make_equality_sql(of: Mapping[str, str]) -> str:
    columns, values = ", ".join(of), ", ".join(of.values())
    return _IS_ONE.get(connection.vendor, "({0}) = ({1})").format(columns, values)


def _get_index_hint() -> str:
    return _INDEX.get(connection.vendor, "")


def _make_value_placeholders(of: Collection[Any]) -> str:
    return ", ".join(["(%s)"] * len(of))
