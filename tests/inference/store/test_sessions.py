"""No statement needs the database's session of the one before: a transaction pooler gives it another."""

import os
from unittest import skipUnless
from unittest.mock import patch

from django.db import DatabaseError, connection, transaction
from django.test import TransactionTestCase
from django.test.utils import CaptureQueriesContext

from inference.connection_retries import is_away
from inference.models import Job
from inference.store.postgresql import base


@skipUnless(connection.vendor == "postgresql", "others have no sessions to share")
class SessionTests(TransactionTestCase):
    def test_no_statement_is_prepared_for_later_ones(self) -> None:
        self.assertIsNone(connection.get_connection_params()["prepare_threshold"])

    def test_the_server_ends_a_transaction_whose_process_does_nothing(self) -> None:
        """A process that was stopped between two statements would keep its rows locked."""
        job = Job.objects.create(model="echo", inputs="text")
        with patch.dict(os.environ, DATABASE_ANSWER_S="20"), patch.object(base, "IDLE_S", 1):
            idle = connection.copy()
            self.addCleanup(idle.close)
            with self.assertRaises(DatabaseError) as ended, transaction.atomic(), idle.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("SELECT id FROM inference_job WHERE id = %s FOR UPDATE", [job.pk])
                Job.objects.select_for_update().get(pk=job.pk)
                cursor.execute("SELECT 1")
        self.assertTrue(is_away(ended.exception))

    def test_rows_that_are_read_in_chunks_leave_no_cursor_in_the_server(self) -> None:
        """Django's own forms read their choices so, too."""
        Job.objects.bulk_create(Job(model="echo", inputs="text") for _ in range(3))
        with CaptureQueriesContext(connection) as queries, connection.cursor() as cursor:
            rows = Job.objects.iterator(chunk_size=1)
            next(rows)
            cursor.execute("SELECT count(*) FROM pg_cursors WHERE name <> ''")
            self.assertEqual(cursor.fetchone(), (0,))
            self.assertEqual(len(list(rows)), 2)
        self.assertEqual(len(queries), 2)
