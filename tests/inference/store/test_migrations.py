"""A migration runs while old processes go on writing: it keeps them neither out nor from inserting."""

from __future__ import annotations

from unittest import skipUnless

from django.core.management import call_command
from django.db import connection, migrations
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.models import NOT_PROVIDED
from django.test import SimpleTestCase, TestCase, TransactionTestCase

from inference.store.postgresql.migration_operations import AddIndexBesideWriters

FIRST = ("0001", "0002", "0003")  # of the first days: no table was large yet


class CompleteTests(TestCase):
    def test_no_change_of_a_model_is_without_its_migration(self) -> None:
        call_command("makemigrations", check_changes=True, dry_run=True, verbosity=0)


class MigrationTests(SimpleTestCase):
    def operations(self) -> list[tuple[str, Operation]]:
        loader = MigrationLoader(None)
        return [
            (f"{app} {name}", operation)
            for (app, name), migration in loader.disk_migrations.items()
            if app in ("inference", "api") and not name.startswith(FIRST)
            for operation in migration.operations
        ]

    def test_a_new_column_has_a_value_in_rows_of_processes_that_do_not_know_it(self) -> None:
        for name, operation in self.operations():
            if isinstance(operation, migrations.AddField) and not operation.field.many_to_many:
                has_value = operation.field.null or operation.field.db_default is not NOT_PROVIDED
                self.assertTrue(has_value, f"{name}: {operation.name} needs db_default, or null")

    def test_an_index_is_built_beside_writers(self) -> None:
        indexes = [found for found in self.operations() if isinstance(found[1], migrations.AddIndex)]
        self.assertTrue(indexes)
        for name, operation in indexes:
            self.assertIsInstance(operation, AddIndexBesideWriters, name)


@skipUnless(connection.vendor == "postgresql", "others build no index beside writers")
class InterruptedTests(TransactionTestCase):
    def test_an_index_that_was_begun_before_is_built_anew(self) -> None:
        loader = MigrationLoader(None)
        key = ("inference", "0006_indexes_for_the_admin")
        before, after = loader.project_state(key, at_end=False), loader.project_state(key)
        operation = loader.disk_migrations[key].operations[0]
        for _ in range(2):
            with connection.schema_editor(atomic=False) as editor:
                operation.database_forwards("inference", editor, before, after)


class DatabaseTests(TestCase):
    def test_the_indexes_are_there(self) -> None:
        with connection.cursor() as cursor:
            found = connection.introspection.get_constraints(cursor, "inference_job")
        self.assertLessEqual({"job_by_request", "job_by_batch"}, found.keys())
