"""Changes of many rows, which are locked in the order of their primary keys so that no two changes deadlock."""

from __future__ import annotations

from typing import Any, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db import connections, transaction
from django.db.models import Model, QuerySet

M = TypeVar("M", bound=Model)


def make_locking_query(rows: QuerySet[M]) -> QuerySet[M]:
    """Return the query that locks these rows within a transaction, the one with the smallest primary key first."""
    return rows.order_by("pk").select_for_update()


def update_rows(rows: QuerySet[M], **values: Any) -> int:
    """Change these rows in one statement, locked in their order, and return how many there were."""
    if not connections[rows.db].features.has_select_for_update:
        return rows.update(**values)
    with transaction.atomic(using=rows.db):
        locked = make_locking_query(rows).values("pk")
        return rows.model._default_manager.using(rows.db).filter(pk__in=locked).update(**values)


def delete_rows(rows: QuerySet[M]) -> int:
    """Delete these rows in one statement, locked in their order, and return how many there were.

    Django's own `delete` would read all rows first, and those that refer to them.
    """
    table, key = rows.model._meta.db_table, rows.model._meta.pk.column
    with transaction.atomic(using=rows.db), connections[rows.db].cursor() as cursor:
        try:
            found, values = make_locking_query(rows).values("pk").query.get_compiler(rows.db).as_sql()
        except EmptyResultSet:  # Django sees that no row can be meant
            return 0
        cursor.execute(f'DELETE FROM "{table}" WHERE "{key}" IN ({found})', values)  # noqa: S608 - own names
        return int(cursor.rowcount)
