from __future__ import annotations

import unittest
from collections.abc import Mapping
from typing import Any

from django.test import tag

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


class StackCase(ShowingLog):
    """Tests that share one stack."""

    options: Mapping[str, Any] = {}  # of the Stack

    @classmethod
    def setUpClass(cls) -> None:
        cls.stack = cls.enterClassContext(Stack(**cls.options))
