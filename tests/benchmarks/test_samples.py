from unittest import TestCase

from benchmarks.samples import quantile, slope


class SlopeTest(TestCase):
    def test_a_steady_stream_has_its_rate(self) -> None:
        self.assertAlmostEqual(slope([number / 50 for number in range(200)]), 50)

    def test_whole_batches_have_their_rate_wherever_the_window_ends(self) -> None:
        for batches in (2, 3, 7):
            with self.subTest(batches=batches):
                times = [batch * 1.6 for batch in range(batches) for _ in range(32)]
                self.assertAlmostEqual(slope(times), 20)


class QuantileTest(TestCase):
    def test_the_last_value_is_the_highest_quantile(self) -> None:
        self.assertEqual([quantile([1.0, 2.0, 3.0, 4.0], share) for share in (0, 0.5, 0.99, 1)], [1, 3, 4, 4])
