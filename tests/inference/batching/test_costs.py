"""What the cost model learns, from measurements as noisy as a busy machine's."""

import random
from collections.abc import Callable
from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from inference.batching.costs import MOST_SHAPES, CostModel
from tests.properties import QUICK

calls = st.tuples(st.integers(1, 200), st.integers(1, 2000), st.floats(0.0, 100.0))
SHAPES = [(size, length) for size in (1, 2, 5, 11, 20, 32) for length in (4, 9, 30, 70, 150, 300)]
Machine = Callable[[int, int], float]
Noise = Callable[[random.Random], float]
Shape = tuple[int, int]  # size, length


def cpu(size: int, length: int) -> float:
    return 0.011 + 0.00017 * size * length


def gpu(size: int, length: int) -> float:
    return max(0.008, 2.5e-6 * size * length)


def tiny(size: int, length: int) -> float:
    return 0.0012 + 0.00008 * size + 0.000002 * size * length


def steady(chance: random.Random) -> float:
    return chance.lognormvariate(0.0, 0.05)


def busy(chance: random.Random) -> float:
    """One call in five is two to ten times as slow."""
    return steady(chance) * (chance.uniform(2, 10) if chance.random() < 0.2 else 1.0)


def teach(
    costs: CostModel, machine: Machine, count: int, noise: Noise = steady, shapes: list[Shape] = SHAPES
) -> CostModel:
    chance = random.Random(7)
    for _ in range(count):
        size, length = chance.choice(shapes)
        costs.learn_call(size, length, machine(size, length) * noise(chance))
    return costs


def worst_error(costs: CostModel, machine: Machine, shapes: list[Shape] = SHAPES) -> float:
    """Largest relative error."""
    return max(abs(costs.predict_call_s(*shape) / (machine(*shape) + costs.overhead_s) - 1) for shape in shapes)


class LearningTests(TestCase):
    def test_it_learns_machines_of_every_kind(self) -> None:
        for machine in (cpu, gpu, tiny):
            with self.subTest(machine.__name__):
                self.assertLess(worst_error(teach(CostModel(), machine, 1000), machine), 0.15)

    def test_slow_outliers_do_not_mislead_it(self) -> None:
        for machine in (cpu, gpu, tiny):
            with self.subTest(machine.__name__):
                self.assertLess(worst_error(teach(CostModel(), machine, 1000, noise=busy), machine), 0.2)

    def test_lone_calls_teach_the_price_of_a_token(self) -> None:
        lone = [(1, length) for length in (5, 20, 60, 120, 250)]
        self.assertLess(worst_error(teach(CostModel(), cpu, 100, shapes=lone), cpu, lone), 0.1)

    def test_it_forgets_a_machine_that_has_changed(self) -> None:
        def slower(size: int, length: int) -> float:
            return 3 * cpu(size, length)

        costs = teach(teach(CostModel(), cpu, 1000), slower, 800)
        self.assertLess(worst_error(costs, slower), 0.25)

    def test_batches_that_were_slow_at_first_are_tried_again(self) -> None:
        costs = CostModel()
        for length in (8, 12, 16):
            costs.learn_call(16, length, 10 * gpu(16, length))
        teach(costs, gpu, 500, shapes=[(1, 8), (1, 12), (1, 16)])
        self.assertLess(costs.predict_call_s(8, 16), 8 * costs.predict_call_s(1, 16))


class PredictionTests(TestCase):
    def test_before_anything_is_known_near_lengths_merge_and_far_ones_do_not(self) -> None:
        costs = CostModel()
        self.assertLess(costs.predict_call_s(8, 20), 8 * costs.predict_call_s(1, 18))
        self.assertGreater(costs.predict_call_s(8, 500), 7 * costs.predict_call_s(1, 20) + costs.predict_call_s(1, 500))

    @QUICK
    @given(st.lists(calls, max_size=40), st.integers(1, 100), st.integers(1, 1000))
    def test_more_items_and_longer_ones_cost_more_and_ever_more(
        self, calls: list[tuple[int, int, float]], size: int, length: int
    ) -> None:
        costs = CostModel()
        for call in calls:
            costs.learn_call(*call)
        by_size = costs.predict_each_call_s([size + 2, size + 1, size], length)
        by_length = [costs.predict_call_s(size, length + more) for more in (2, 1, 0)]
        for most, more, least in (by_size, by_length):
            self.assertGreaterEqual(least, costs.overhead_s)
            self.assertGreaterEqual(more, least)
            self.assertGreaterEqual((most - more) * (1 + 1e-6), (more - least) * (1 - 1e-6) - 1e-9)

    def test_what_a_call_costs_besides_the_engine_is_measured_and_a_pause_is_no_cost(self) -> None:
        costs = CostModel()
        for number in range(100):
            costs.learn_overhead(5.0 if number % 4 == 0 else 0.004)
        self.assertAlmostEqual(costs.overhead_s + costs.make_snapshot().job_s, 0.004, places=5)

    def test_what_its_jobs_cost_there_is_in_the_snapshot_and_not_predicted(self) -> None:
        costs = CostModel()
        for jobs in (1, 10, 100) * 20:
            costs.learn_overhead(0.004 + 0.0002 * jobs, jobs=jobs)
        self.assertAlmostEqual(costs.overhead_s, 0.004, places=4)
        self.assertAlmostEqual(costs.make_snapshot().job_s, 0.0002, places=5)
        self.assertAlmostEqual(costs.predict_call_s(1, 1), costs.overhead_s + costs.weights[0], places=3)

    def test_the_measured_speed_is_items_over_seconds_of_late(self) -> None:
        costs = CostModel()
        self.assertEqual(costs.items_per_s(), 0.0)
        for _ in range(300):
            costs.learn_call(4, 10, 0.1)
        for _ in range(300):
            costs.learn_call(4, 10, 0.01)
        self.assertAlmostEqual(costs.items_per_s(), 400, delta=20)

    def test_calls_follow_each_other_at_the_pace_of_what_is_slower(self) -> None:
        costs = CostModel()
        self.assertEqual(costs.read_to_run_ratio, 1.0)
        for read_s, pace in ((0.01, 1.0), (0.19, 5.0)):
            costs.learn_call(8, 10, 0.02)
            costs.learn_read_time(read_s)
            self.assertAlmostEqual(costs.read_to_run_ratio, pace, delta=0.2)

    def test_a_call_that_cannot_be_is_refused(self) -> None:
        for wrong in ((0, 1, 1.0), (1, 0, 1.0), (1, 1, -1.0), (1, 1, float("nan")), (1, 1, float("inf"))):
            with self.subTest(wrong), self.assertRaisesRegex(ValueError, "a call has items"):
                CostModel().learn_call(*wrong)


class SnapshotTests(TestCase):
    def test_a_model_of_a_snapshot_predicts_the_same_and_the_snapshot_has_what_was_measured(self) -> None:
        model = CostModel()
        for size, length in SHAPES * 3:
            model.learn_call(size, length, cpu(size, length))
        snapshot = model.make_snapshot()
        other = CostModel.from_snapshot(snapshot)
        for size, length in SHAPES:
            self.assertAlmostEqual(other.predict_call_s(size, length), model.predict_call_s(size, length), places=4)
        self.assertEqual(len(snapshot.seen), len(SHAPES))
        self.assertIn((32, 300, round(cpu(32, 300), 6)), snapshot.seen)
        for length in range(1, 200):
            model.learn_call(2 ** (length % 11), 2.0 ** (length % 19), 0.1)
        self.assertLessEqual(len(model.make_snapshot().seen), MOST_SHAPES)
