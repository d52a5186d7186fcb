"""Indexes that databases are told differently."""

from typing import Any

from django.db import models


class IndexWithoutParts(models.Index):
    """Its condition is for PostgreSQL, which counts by it alone what is listed. SQLite would take an index with a
    condition for one that finds less than any without, and look there first."""

    def create_sql(self, model: Any, schema_editor: Any, using: str = "", **kwargs: Any) -> Any:
        if schema_editor.connection.vendor == "postgresql":
            return super().create_sql(model, schema_editor, using, **kwargs)
        return models.Index(fields=self.fields, name=self.name).create_sql(model, schema_editor, using, **kwargs)
