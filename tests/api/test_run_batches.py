"""The program that works on file batches is noted as alive for as long as it runs."""

from __future__ import annotations

import threading
from unittest.mock import patch

from django.db import OperationalError, connection
from django.test import TestCase

from api.management.commands.run_batches import update_worked_at
from inference import row_locks
from inference.models import Bulk
from tests.conditions import ago


class EndAfter(threading.Event):
    """An event that is set once it was waited for a number of times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        return self.left < 0


class LifeTests(TestCase):
    def setUp(self) -> None:
        self.open = Bulk.objects.create(model="", total=1, is_open=True)
        self.closed = Bulk.objects.create(model="", total=1)

    def test_open_bulks_have_the_moment(self) -> None:
        before = ago(60)
        update_worked_at(EndAfter(1))
        self.open.refresh_from_db()
        self.closed.refresh_from_db()
        assert self.open.worked_at is not None
        self.assertGreater(self.open.worked_at, before)
        self.assertIsNone(self.closed.worked_at)

    def test_a_database_that_is_away_ends_nothing(self) -> None:
        lost = [OperationalError("the connection is lost"), 1]
        with (
            patch.object(row_locks, "update_rows", side_effect=lost) as update,
            patch.object(connection, "close") as close,
        ):
            update_worked_at(EndAfter(2))
        self.assertEqual((update.call_count, close.call_count), (2, 1))
