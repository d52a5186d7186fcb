"""No statement needs the database's session of the one before: a transaction pooler gives it another."""

from unittest import skipUnless

from django.db import connection
from django.test import TransactionTestCase
from django.test.utils import CaptureQueriesContext

from inference.models import Job


@skipUnless(connection.vendor == "postgresql", "others have no sessions to share")
class SessionTests(TransactionTestCase):
    def test_no_statement_is_prepared_for_later_ones(self) -> None:
        self.assertIsNone(connection.get_connection_params()["prepare_threshold"])

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
