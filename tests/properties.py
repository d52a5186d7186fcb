"""How property tests run here: few examples, the same ones each time, nothing kept between runs, no time asserted."""

from hypothesis import HealthCheck, settings

QUICK = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
