"""Rates by the broker's clock, whatever that is set to."""

from django.test import SimpleTestCase

from inference.broker import redis_client
from inference.web_process import rate_limits

NAME, PER_MINUTE = "test:clock", 60


class RateTests(SimpleTestCase):
    def setUp(self) -> None:
        self.redis = redis_client.get_client()
        self.redis.delete(rate_limits._make_key(NAME))  # noqa: SLF001 - what it stores
        self.addCleanup(self.redis.delete, rate_limits._make_key(NAME))  # noqa: SLF001

    def test_a_clock_that_was_set_back_keeps_nobody_out(self) -> None:
        seconds, _ = self.redis.time()
        self.redis.set(rate_limits._make_key(NAME), f"{seconds + 3600}.0")  # noqa: SLF001 - written an hour ahead
        self.assertEqual(rate_limits.Rates().count_against_rate(NAME, PER_MINUTE), 0.0)
        self.assertEqual(rate_limits.Rates().count_against_rate(NAME, PER_MINUTE), 0.0)

    def test_a_burst_is_bounded(self) -> None:
        waits = [rate_limits.Rates().count_against_rate(NAME, 1) for _ in range(2)]
        self.assertEqual(waits[0], 0.0)
        self.assertGreater(waits[1], 0.0)
