"""What is learnt of what a call costs besides its engine."""

import random
from collections.abc import Callable, Sequence
from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from inference.batching.costs import CostModel
from inference.batching.overheads import JOBS, Overheads
from inference.batching.queue import BatchQueue, Item, Limits
from tests.properties import QUICK

CALL_S, JOB_S = 0.005, 0.0003
SIZES = (1, 2, 5, 8, 20, 32, 100, 256)


def host(jobs: int) -> float:
    return CALL_S + JOB_S * jobs


def busy(chance: random.Random) -> float:
    """One call in five is two to ten times as slow."""
    return chance.lognormvariate(0.0, 0.05) * (chance.uniform(2, 10) if chance.random() < 0.2 else 1.0)


def teach(
    found: Overheads, count: int, sizes: Sequence[int] = SIZES, seconds: Callable[[int], float] = host
) -> Overheads:
    chance = random.Random(7)
    for _ in range(count):
        jobs = chance.choice(sizes)
        found.learn_call(jobs, seconds(jobs) * busy(chance))
    return found


class OverheadTests(TestCase):
    def assert_learnt(self, found: Overheads, call_s: float = CALL_S, job_s: float = JOB_S) -> None:
        self.assertAlmostEqual(found.call_s, call_s, delta=0.2 * call_s)
        self.assertAlmostEqual(found.job_s, job_s, delta=0.2 * job_s)

    def test_a_part_for_the_call_and_one_for_each_job_are_separated_on_a_busy_machine(self) -> None:
        self.assert_learnt(teach(Overheads(0.001), 300))

    def test_a_host_that_has_changed_is_forgotten(self) -> None:
        found = teach(teach(Overheads(0.001), 300), 300, seconds=lambda jobs: 3 * host(jobs))
        self.assert_learnt(found, 3 * CALL_S, 3 * JOB_S)

    def test_what_calls_of_one_size_do_not_show_is_guessed(self) -> None:
        for jobs in (1, 256):
            found = Overheads(0.001)
            for _ in range(50):
                found.learn_call(jobs, 0.1)
            self.assertAlmostEqual(found.call_s + jobs * found.job_s, 0.1, places=4)
            self.assertAlmostEqual(found.call_s / found.job_s, JOBS, delta=0.5)

    @QUICK
    @given(st.lists(st.tuples(st.integers(1, 600), st.floats(0.0, 10.0)), min_size=1, max_size=40))
    def test_no_part_is_negative(self, calls: list[tuple[int, float]]) -> None:
        found = Overheads(0.001)
        for call in calls:
            found.learn_call(*call)
        self.assertGreaterEqual(min(found.call_s, found.job_s), 0.0)


class NeverSlowerTests(TestCase):
    def test_large_batches_do_not_make_those_form_that_are_slower_than_their_jobs_apart(self) -> None:
        """What their many jobs take besides is not saved by one call for two."""
        costs = CostModel()
        for size, length in ((1, 8), (1, 300), (8, 8), (32, 8), (8, 100), (2, 300)) * 20:
            costs.learn_call(size, length, 0.011 + 0.00017 * size * length)
            costs.learn_overhead(host(256), jobs=256)
        queue = BatchQueue(Limits(max_batch_size=32, max_batch_tokens=8192), costs)
        for place, length in enumerate((8, 300)):
            queue.add(Item(str(place), "", 1, length, 2, arrived_at_s=float(place)))
        self.assertEqual([item.length for item in queue.take_batch(2.0)], [8])
