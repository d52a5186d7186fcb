"""Migration operations on tables that a running service goes on writing to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.postgres.operations import AddIndexConcurrently, NotInTransactionMixin, RemoveIndexConcurrently

if TYPE_CHECKING:
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.migrations.state import ProjectState


class _BesideWriters:
    """A mixin by which the index is changed without blocking writers, where the database can do that.

    Its migration has `atomic = False`.
    """

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._choose_operation(schema_editor).database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._choose_operation(schema_editor).database_backwards(app_label, schema_editor, from_state, to_state)

    def _choose_operation(self, schema_editor: BaseDatabaseSchemaEditor) -> Any:
        """Return PostgreSQL's concurrent operation, or the plain one that it is derived from."""
        return super(_BesideWriters if _supports_concurrent_index(schema_editor) else NotInTransactionMixin, self)


class AddIndexBesideWriters(_BesideWriters, AddIndexConcurrently):
    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if _supports_concurrent_index(schema_editor):
            schema_editor.execute("SET statement_timeout = 0")
            name = schema_editor.quote_name(self.index.name)  # an index left by an interrupted try is invalid
            schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        super().database_forwards(app_label, schema_editor, from_state, to_state)


class RemoveIndexBesideWriters(_BesideWriters, RemoveIndexConcurrently):
    """The removal of an index beside writers.

    A plain removal would wait for transactions that read, and all others would wait for it.
    """


def _supports_concurrent_index(schema_editor: BaseDatabaseSchemaEditor) -> bool:
    return bool(schema_editor.connection.vendor == "postgresql")
