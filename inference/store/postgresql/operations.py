"""Changes of tables that a running service goes on writing to."""

from typing import Any

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations


class AddIndexBesideWriters(AddIndexConcurrently):
    """Where the database can, the index is built without keeping writers out. Its migration has `atomic = False`."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor == "postgresql":
            self._ensure_not_in_transaction(schema_editor)
            schema_editor.execute("SET statement_timeout = 0")
            name = schema_editor.quote_name(self.index.name)  # what an interrupted try left behind is not valid
            schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        self._operation(schema_editor).database_forwards(self, app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        self._operation(schema_editor).database_backwards(self, app_label, schema_editor, from_state, to_state)

    def _operation(self, schema_editor: Any) -> type[migrations.AddIndex]:
        return AddIndexConcurrently if schema_editor.connection.vendor == "postgresql" else migrations.AddIndex


class RemoveIndexBesideWriters(RemoveIndexConcurrently):
    """The same: else it would wait for who reads, and all others for it."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        is_concurrent = schema_editor.connection.vendor == "postgresql"
        operation = RemoveIndexConcurrently if is_concurrent else migrations.RemoveIndex
        operation.database_forwards(self, app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        migrations.RemoveIndex.database_backwards(self, app_label, schema_editor, from_state, to_state)
