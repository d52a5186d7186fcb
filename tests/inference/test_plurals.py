"""Counts in words."""

from unittest import TestCase

from inference.telemetry.plurals import count_of


class PluralsTests(TestCase):
    def test_one_is_told_as_one(self) -> None:
        verb = ("waits", "wait")
        for count, told in ((0, "0 jobs wait"), (1, "1 job waits"), (1234, "1,234 jobs wait")):
            self.assertEqual(count_of(count, "job", verb), told)
            self.assertEqual(count_of(count, "job"), told.rpartition(" ")[0])
