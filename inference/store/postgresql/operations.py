"""Migration operations on tables that a running service goes on writing to."""

from typing import Any

from django.contrib.postgres.operations import AddIndexConcurrently, NotInTransactionMixin, RemoveIndexConcurrently


class _BesideWriters:
    """A mixin by which the index is changed without blocking writers, where the database can do that.

    Its migration has `atomic = False`.
    """

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        self._operation(schema_editor).database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        self._operation(schema_editor).database_backwards(app_label, schema_editor, from_state, to_state)

    def _operation(self, schema_editor: Any) -> Any:
        """Return PostgreSQL's concurrent operation, or the plain one that it is derived from."""
        return super(_BesideWriters if _is_able(schema_editor) else NotInTransactionMixin, self)


class AddIndexBesideWriters(_BesideWriters, AddIndexConcurrently):
    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if _is_able(schema_editor):
            schema_editor.execute("SET statement_timeout = 0")
            name = schema_editor.quote_name(self.index.name)  # an index left by an interrupted try is invalid
            schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        super().database_forwards(app_label, schema_editor, from_state, to_state)


class RemoveIndexBesideWriters(_BesideWriters, RemoveIndexConcurrently):
    """The removal of an index beside writers.

    A plain removal would wait for transactions that read, and all others would wait for it.
    """


def _is_able(schema_editor: Any) -> bool:
    return bool(schema_editor.connection.vendor == "postgresql")
