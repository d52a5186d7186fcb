"""Counts in words."""

from unittest import TestCase

from inference.telemetry.plurals import count_of


class PluralsTests(TestCase):
    def test_one_is_singular(self) -> None:
        verb = ("waits", "wait")
        for count, text in ((0, "0 jobs wait"), (1, "1 job waits"), (1234, "1,234 jobs wait")):
            self.assertEqual(count_of(count, "job", verb), text)
            self.assertEqual(count_of(count, "job"), text.rpartition(" ")[0])
