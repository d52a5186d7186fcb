"""Figures add up in any order, and a quantile of the sum is that of all values, within a bucket."""

import random
import statistics
import unittest

from inference.figures import tallies
from inference.figures.tallies import Tally


def tally_of(values: list[float]) -> Tally:
    tally: Tally = {}
    for value in values:
        tallies.add_value(tally, "wait", value, unit=tallies.UNIT_S)
    return tally


class TestTallies(unittest.TestCase):
    def test_numbers_add_up_and_the_largest_stay(self) -> None:
        one = {"ended": {"succeeded": 3}, "most": {"queued": {"a": 7}}}
        other = {"ended": {"succeeded": 2, "failed lost": 1}, "most": {"queued": {"a": 5, "b": 1}}}
        total = tallies.sum_tallies([one, other])
        self.assertEqual(total["ended"], {"succeeded": 5, "failed lost": 1})
        self.assertEqual(total["most"], {"queued": {"a": 7, "b": 1}})
        self.assertEqual(one["ended"], {"succeeded": 3})

    def test_quantiles_of_merged_rows_are_those_of_all_values_within_a_fifth(self) -> None:
        draw = random.Random(7)
        values = [draw.lognormvariate(0, 2) for _ in range(2000)]
        merged = tallies.sum_tallies(tally_of(values[start::5]) for start in range(5))["wait"]
        exact = statistics.quantiles(values, n=100)
        for percent in (50, 95):
            found = tallies.compute_quantile(merged, percent / 100)
            assert found
            self.assertLess(abs(found / exact[percent - 1] - 1), 0.2)
        self.assertAlmostEqual(merged["sum"], sum(values), places=6)

    def test_small_counts_have_buckets_of_their_own(self) -> None:
        ends = [
            tallies.compute_histogram_bucket_end(tallies.find_histogram_bucket(size)) for size in (1, 2, 4, 8, 16, 32)
        ]
        self.assertEqual(ends, [1, 2, 4, 8, 16, 32])

    def test_any_value_has_a_bucket(self) -> None:
        for value in (0.0, 1e-9, 1e12):
            self.assertIn(tallies.find_histogram_bucket(value), range(121))

    def test_of_nothing_nothing_is_known(self) -> None:
        self.assertIsNone(tallies.compute_quantile(None, 0.5))
        self.assertIsNone(tallies.compute_mean({"sum": 0.0, "in": {}}))
