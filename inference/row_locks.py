"""Changes of many rows, which are locked in the order of their primary keys so that no two changes deadlock."""

from __future__ import annotations

from typing import Any, TypeVar

from django.db import connections, transaction
from django.db.models import Model, QuerySet

M = TypeVar("M", bound=Model)


def lock_rows(rows: QuerySet[M]) -> QuerySet[M]:
    """Return the query that locks these rows within a transaction, the one with the smallest primary key first."""
    return rows.order_by("pk").select_for_update()


def update_rows(rows: QuerySet[M], **values: Any) -> int:
    """Change these rows in one statement, locked in their order, and return how many there were."""
    if not connections[rows.db].features.has_select_for_update:
        return rows.update(**values)
    with transaction.atomic(using=rows.db):
        return _locked(rows).update(**values)


def delete_rows(rows: QuerySet[M]) -> int:
    """Delete these rows in one statement, locked in their order, and return how many there were.

    No row is read before, and rows that refer to the deleted ones are not looked for.
    """
    if not connections[rows.db].features.has_select_for_update:
        return rows._raw_delete(rows.db)
    with transaction.atomic(using=rows.db):
        return _locked(rows)._raw_delete(rows.db)


def _locked(rows: QuerySet[M]) -> QuerySet[M]:
    return rows.model._default_manager.using(rows.db).filter(pk__in=lock_rows(rows).values("pk"))
