"""A request's waits for the lock of SQLite's file are counted together."""

from __future__ import annotations

import os
import time
from unittest import skipUnless
from unittest.mock import patch

from django.db import OperationalError, connection
from django.test import TestCase

from inference import budget


@skipUnless(connection.vendor == "sqlite", "only SQLite locks its file")
class LockTests(TestCase):
    def setUp(self) -> None:
        self.now = 100.0
        self.enterContext(patch.dict(os.environ, DATABASE_ANSWER_S="4"))
        self.enterContext(patch.object(time, "monotonic", lambda: self.now))

    def patience_ms(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout")
            return int(cursor.fetchone()[0])

    def test_what_one_statement_waited_the_next_has_no_more(self) -> None:
        with budget.request_budget():
            self.assertEqual(self.patience_ms(), 4000)
            for took_s, left_ms in ((3.0, 1500), (1.0, 500)):
                with budget.counted_wait():
                    self.now += took_s
                self.assertEqual(self.patience_ms(), left_ms)
            with budget.counted_wait():
                self.now += 0.5
            with self.assertRaisesMessage(OperationalError, budget.SPENT):
                self.patience_ms()
        self.assertEqual(self.patience_ms(), 4000)
