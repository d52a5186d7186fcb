from __future__ import annotations

import unittest
from collections.abc import Mapping
from typing import Any

from tests.stack import Stack


class StackCase(unittest.TestCase):
    """Tests that share one stack. Its log is shown when the first of them fails."""

    stack: Stack
    options: Mapping[str, Any] = {}  # of the Stack

    @classmethod
    def setUpClass(cls) -> None:
        cls.stack = cls.enterClassContext(Stack(**cls.options))

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        good = result is None or result.wasSuccessful()
        result = super().run(result)
        if good and result and not result.wasSuccessful():
            self.stack.show_log()
        return result
