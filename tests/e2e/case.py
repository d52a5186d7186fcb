from __future__ import annotations

import unittest
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.test import tag

from inference.models import Status
from inference.status.workers import SERVING
from tests.conditions import eventually
from tests.echo import HELD
from tests.second_look import TAG
from tests.stack import Stack


@tag(TAG)
class ShowingLog(unittest.TestCase):
    """Tests with a stack, of each or of all. Its log is shown when the first of them fails."""

    stack: Stack

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        good = result is None or result.wasSuccessful()
        result = super().run(result)
        if good and result and not result.wasSuccessful() and hasattr(self, "stack"):
            self.stack.show_log()
        return result

    def hold(self, name: str = HELD) -> None:
        """Have what is told to wait for this file do so, until it is released or the test ends."""
        self.stack.hold(name)
        self.addCleanup(self.stack.release, name)

    def is_running(self, job: UUID) -> bool:
        return self.stack.jobs.filter(pk=job, status=Status.RUNNING).exists()

    def all_are_busy(self) -> None:
        """Wait until each replica of each worker has a batch: by the jobs, too, as a worker's row tells of before."""
        batches = self.stack.jobs.filter(status=Status.RUNNING).order_by().values("batch").distinct()

        def are_busy() -> bool:
            rows = self.stack.workers.filter(state__in=SERVING)
            rows_are_busy = all(row.replicas_busy >= row.replicas_total for row in rows)
            return rows_are_busy and batches.count() >= sum(row.replicas_total for row in rows)

        eventually(are_busy, "all replicas are busy")

    def log_shows(self, text: str, what: str) -> None:
        """Wait for a line with this text: what a process writes is read a moment later."""
        eventually(lambda: any(text in line for line in list(self.stack.log)), what)


class StackCase(ShowingLog):
    """Tests that share one stack."""

    options: Mapping[str, Any] = {}  # of the Stack

    @classmethod
    def setUpClass(cls) -> None:
        cls.stack = cls.enterClassContext(Stack(**cls.options))

    def setUp(self) -> None:
        super().setUp()
        self.stack.start_again()
