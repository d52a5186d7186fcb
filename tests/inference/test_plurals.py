"""Counts in words."""

from unittest import TestCase

from inference.telemetry.plurals import format_count


class PluralsTests(TestCase):
    def test_one_is_singular(self) -> None:
        verb = ("waits", "wait")
        for count, text in ((0, "0 jobs wait"), (1, "1 job waits"), (1234, "1,234 jobs wait")):
            self.assertEqual(format_count(count, "job", verb), text)
            self.assertEqual(format_count(count, "job"), text.rpartition(" ")[0])
