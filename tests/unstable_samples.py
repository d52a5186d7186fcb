"""Tests that fail always, or only when they run first: `tests.test_second_look` runs them."""

import unittest
from collections import Counter

from django.test import tag

from tests.second_look import TAG

tries = Counter[str]()


def fail_at_first(name: str) -> None:
    tries[name] += 1
    if tries[name] == 1:
        raise AssertionError(f"the first try of {name}")


@tag(TAG)
class EndToEnd(unittest.TestCase):
    def test_fails_always(self) -> None:
        tries["always"] += 1
        self.fail("each time")

    def test_fails_first(self) -> None:
        fail_at_first("one")

    def test_fails_first_in_parts(self) -> None:
        for part in "ab":
            with self.subTest(part):
                fail_at_first(part)

    def test_holds(self) -> None:
        tries["good"] += 1

    def test_fails_and_is_skipped_then(self) -> None:
        tries["skipped"] += 1
        if tries["skipped"] > 1:
            self.skipTest("nothing was looked at")
        self.fail("at first")


@tag(TAG)
class FirstSetUp(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        fail_at_first("set-up")

    def test_holds(self) -> None:
        tries["after set-up"] += 1


class OneProcess(unittest.TestCase):
    def test_fails_first(self) -> None:
        fail_at_first("alone")
