"""The indexes that are created differently in each kind of database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

if TYPE_CHECKING:
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor


class PostgresqlPartialIndex(models.Index):
    """An index whose condition only PostgreSQL gets.

    PostgreSQL counts the listed jobs with this index alone. SQLite would assume that an index with a condition finds
    fewer rows than any index without one, and would use it first.
    """

    def create_sql(
        self, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor, using: str = "", **kwargs: Any
    ) -> Any:
        if schema_editor.connection.vendor == "postgresql":
            return super().create_sql(model, schema_editor, using, **kwargs)
        return models.Index(fields=self.fields, name=self.name).create_sql(model, schema_editor, using, **kwargs)
