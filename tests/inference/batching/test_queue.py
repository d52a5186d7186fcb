"""The promises of the batching policy, as properties over random queues, limits and learnt costs."""

import gc
import itertools
import math
import random
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any
from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sortedcontainers import SortedList

from benchmarks.simulator.workloads import cpu
from inference.batching.costs import CostModel
from inference.batching.queue import (
    AT_ONCE,
    LARGEST,
    MEMORY_S,
    BatchQueue,
    Item,
    Limits,
    ShortCalls,
    check_items,
)
from inference.batching.room import Room
from inference.catalog.sizes.lengths import measure_inputs
from inference.catalog.specs import ModelSpec
from tests.properties import QUICK

Calls = list[tuple[int, int, float]]  # size, length, seconds
LOW = 3  # the priority of jobs that can wait
ROOMY = Limits(max_batch_size=32, max_batch_tokens=8192)

sizes, lengths, priorities, groups = st.integers(1, 5), st.integers(1, 600), st.integers(1, 3), st.sampled_from("ab")
times = st.integers(0, 20).map(float)
limits = st.builds(Limits, max_batch_size=st.integers(1, 40), max_batch_tokens=st.integers(1, 5000))
measured_calls = st.lists(st.tuples(st.integers(1, 64), lengths, st.floats(1e-4, 10.0)), max_size=40)
jobs = st.fixed_dictionaries(
    {"group": groups, "size": sizes, "length": lengths, "priority": priorities, "arrived_at_s": times}
)
queues_of_jobs = st.lists(jobs, max_size=60).map(lambda rows: [item(str(n), **row) for n, row in enumerate(rows)])


def item(name: str, **values: Any) -> Item:
    return Item(**{"id": name, "group": "", "size": 1, "length": 10, "priority": 2, "arrived_at_s": 0.0, **values})


def learnt(calls: Calls) -> CostModel:
    costs = CostModel()
    for call in calls:
        costs.learn_call(*call)
    return costs


def filled(
    items: Iterable[Item], limits: Limits = ROOMY, costs: CostModel | None = None, padded: bool = True
) -> BatchQueue:
    queue = BatchQueue(limits, costs or CostModel())
    queue.padded = padded
    for waiting in items:
        queue.add(waiting)
    return queue


def batches(queue: BatchQueue, now_s: float = 20.0) -> list[list[Item]]:
    return list(iter(lambda: queue.take_batch(now_s), []))


def shape(batch: list[Item], padded: bool) -> tuple[int, float]:
    size = sum(job.size for job in batch)
    if padded:
        return size, max(job.length for job in batch)
    return size, sum(job.size * job.length for job in batch) / size


def is_within(batch: list[Item], max_size: int, max_tokens: float, padded: bool) -> bool:
    size = sum(job.size for job in batch)
    tokens = size * max(job.length for job in batch) if padded else sum(job.size * job.length for job in batch)
    return len(batch) == 1 or (size <= max_size and tokens <= max_tokens)


class BatchTests(TestCase):
    @QUICK
    @given(queues_of_jobs, limits, measured_calls, st.booleans())
    def test_every_job_is_in_one_batch(self, items: list[Item], limits: Limits, calls: Calls, padded: bool) -> None:
        taken = [job for batch in batches(filled(items, limits, learnt(calls), padded)) for job in batch]
        self.assertEqual(sorted(taken, key=lambda job: int(job.id)), items)

    @QUICK
    @given(queues_of_jobs, limits, measured_calls, st.booleans())
    def test_a_batch_is_within_the_limits_or_a_lone_job(
        self, items: list[Item], limits: Limits, calls: Calls, padded: bool
    ) -> None:
        for batch in batches(filled(items, limits, learnt(calls), padded)):
            self.assertTrue(is_within(batch, limits.max_batch_size, limits.max_batch_tokens, padded), batch)

    @QUICK
    @given(queues_of_jobs, limits, measured_calls, st.booleans())
    def test_a_batch_is_never_predicted_to_be_slower_than_one_at_a_time(
        self, items: list[Item], limits: Limits, calls: Calls, padded: bool
    ) -> None:
        costs = learnt(calls)
        for batch in batches(filled(items, limits, costs, padded)):
            apart_s = sum(costs.predict_call_s(job.size, job.length) for job in batch)
            self.assertLessEqual(costs.predict_call_s(*shape(batch, padded)), apart_s * (1 + 1e-9))

    @QUICK
    @given(queues_of_jobs, limits, measured_calls, st.booleans())
    def test_a_batch_holds_the_oldest_of_the_highest_priority_and_one_group(
        self, items: list[Item], limits: Limits, calls: Calls, padded: bool
    ) -> None:
        queue = filled(items, limits, learnt(calls), padded)
        while (head := queue.find_first_item()) is not None:
            first = min(items, key=lambda job: (job.priority, job.arrived_at_s))
            batch = queue.take_batch(20.0)
            self.assertEqual((head.priority, head.arrived_at_s), (first.priority, first.arrived_at_s))
            self.assertIn(first, batch)
            self.assertEqual({job.group for job in batch}, {first.group})
            items = [job for job in items if job not in batch]

    @QUICK
    @given(queues_of_jobs, measured_calls, st.lists(jobs, min_size=100, max_size=100), st.booleans())
    def test_nothing_starves_while_younger_jobs_keep_coming(
        self, items: list[Item], calls: Calls, newcomers: list[dict[str, Any]], padded: bool
    ) -> None:
        queue = filled(items, costs=learnt(calls), padded=padded)
        for turn, newcomer in enumerate(newcomers[: len(items)]):
            queue.add(item(f"new{turn}", **{**newcomer, "priority": 3, "arrived_at_s": 21.0 + turn}))
            queue.take_batch(21.0 + turn)
        self.assertEqual([job for job in items if queue.remove(job.id)], [])

    @QUICK
    @given(queues_of_jobs, measured_calls, st.booleans())
    def test_jobs_that_differ_in_age_only_leave_in_order(self, items: list[Item], calls: Calls, padded: bool) -> None:
        queue = filled(items, costs=learnt(calls), padded=padded)
        turn = {job: at for at, batch in enumerate(batches(queue)) for job in batch}
        for older in items:
            for younger in items:
                if _alike(older, younger) and older.arrived_at_s < younger.arrived_at_s:
                    self.assertLessEqual(turn[older], turn[younger])

    @QUICK
    @given(queues_of_jobs, measured_calls, st.booleans())
    def test_a_lower_priority_rides_along_when_nothing_higher_is_left_behind(
        self, items: list[Item], calls: Calls, padded: bool
    ) -> None:
        queue = filled(items, costs=learnt(calls), padded=padded)
        while batch := queue.take_batch(20.0):
            items = [job for job in items if job not in batch]
            highest_left = min((job.priority for job in items), default=9)
            self.assertLessEqual({job.priority for job in batch if job.priority > highest_left}, {batch[0].priority})

    @QUICK
    @given(queues_of_jobs, measured_calls, st.booleans(), st.floats(1e-4, 1.0), st.sampled_from((None, 1, 2, 3)))
    def test_jobs_that_can_wait_are_so_many_that_the_call_is_short(
        self, items: list[Item], calls: Calls, padded: bool, most_s: float, priority: int | None
    ) -> None:
        queue, other = (filled(items, costs=learnt(calls), padded=padded) for _ in range(2))
        head = queue.find_first_item(priority) or queue.find_first_item()
        batch = queue.take_batch(20.0, priority=priority, short=ShortCalls(LOW, most_s))
        full = other.take_batch(20.0, priority=priority)
        self.assertEqual([job for job in full if job in batch], batch)
        first = [job for job in full if job.priority < LOW or job is head]
        self.assertLessEqual(set(first), set(batch))
        if len(batch) > len(first):
            short_s = most_s if head and head.priority >= LOW else 0.0
            self.assertLessEqual(
                queue.predict_overlapped_call_s(batch), max(short_s, queue.predict_overlapped_call_s(first))
            )

    def test_near_lengths_share_a_batch_and_far_ones_do_not(self) -> None:
        batch = filled(item(str(n), length=length) for n, length in enumerate([10, 500, 12, 11, 480])).take_batch(0.0)
        self.assertEqual([job.length for job in batch], [10, 12, 11])

    def test_what_is_not_padded_goes_together_in_the_order_of_arrival(self) -> None:
        lengths = [10, 500, 12, 11, 480]
        waiting = [item(str(n), length=length, arrived_at_s=float(n)) for n, length in enumerate(lengths)]
        self.assertEqual(filled(waiting, padded=False).take_batch(9.0), waiting)

    def test_what_is_not_padded_is_cut_where_a_call_does_most_work_a_second(self) -> None:
        bends = CostModel()
        for size in (1, 2, 4, 8, 16, 32):  # 10 ms a call, 1 ms an item, and 10 ms an item beyond 256 tokens
            for _ in range(8):
                bends.learn_call(size, 64, 0.01 + 0.001 * size + 0.01 * max(0, size - 4))
        self.assertEqual(
            [
                len(batch)
                for batch in batches(
                    filled(
                        [item(str(n), length=64, arrived_at_s=float(n)) for n in range(12)], costs=bends, padded=False
                    )
                )
            ],
            [4, 4, 4],
        )

    def test_idle_lower_priorities_fill_a_batch(self) -> None:
        batch = filled([item("low", priority=3), item("high", priority=1), item("normal")]).take_batch(0.0)
        self.assertEqual([job.id for job in batch], ["high", "normal", "low"])

    def test_a_job_over_the_limits_goes_alone(self) -> None:
        queue = filled([item("huge", size=100, length=500), item("small", arrived_at_s=1.0)])
        self.assertEqual([[job.id for job in batch] for batch in batches(queue)], [["huge"], ["small"]])

    def test_those_that_join_are_taken_in_turn_while_there_is_room(self) -> None:
        jobs = [item(name, length=10, arrived_at_s=float(turn)) for turn, name in enumerate("abc")]
        one, two, none = Room(rows=3, tokens=15), Room(rows=2, tokens=100), Room(rows=0, tokens=100)
        for room, most, taken in ((one, None, "a"), (two, None, "ab"), (none, None, ""), (two, 1, "a"), (none, 1, "a"),
                                  (none, 2, "a"), (one, 2, "a")):  # fmt: skip
            queue = filled(jobs)
            with self.subTest(room=room, most=most):
                self.assertEqual(queue.can_take_next_item(room), room is not none)
                self.assertEqual("".join(job.id for job in queue.take_items_in_turn(0.0, room, most=most)), taken)
                left = queue.take_items_in_turn(0.0, Room(rows=9, tokens=1000))
                self.assertEqual(taken + "".join(job.id for job in left), "abc")
                self.assertFalse(queue.can_take_next_item(two))

    def test_a_job_of_impossible_numbers_is_refused(self) -> None:
        for wrong in ({"size": 0}, {"length": 10**40}, {"arrived_at_s": float("nan")}, {"expires_at_s": float("inf")}):
            with self.subTest(wrong), self.assertRaises(ValueError):
                check_items([item("x", **wrong)])

    def test_the_smallest_and_the_largest_job_are_taken(self) -> None:
        most = {"size": LARGEST, "length": LARGEST, "priority": LARGEST}
        for numbers in ({"size": 1, "length": 1}, most, {"priority": -LARGEST, "expires_at_s": 1.0}):
            check_items([item("x", **numbers)])
        for wrong in ({"size": LARGEST + 1}, {"length": 0}, {"priority": LARGEST + 1}):
            with self.subTest(wrong), self.assertRaises(ValueError):
                check_items([item("x", **wrong)])


def _alike(one: Item, other: Item) -> bool:
    return (one.group, one.size, one.length, one.priority) == (other.group, other.size, other.length, other.priority)


class MemoryTests(TestCase):
    @QUICK
    @given(
        queues_of_jobs,
        measured_calls,
        st.lists(st.tuples(st.integers(1, 64), lengths), min_size=1, max_size=3),
        st.booleans(),
    )
    def test_what_did_not_fit_is_halved_for_a_while(
        self, items: list[Item], calls: Calls, failed: list[tuple[int, int]], padded: bool
    ) -> None:
        queue = filled(items, costs=learnt(calls), padded=padded)
        for size, length in failed:
            queue.limit_after_out_of_memory(size, length, now_s=1000.0)
        fits = min(size * length for size, length in failed) / 2
        for batch in batches(queue, now_s=1000.0):
            self.assertTrue(is_within(batch, ROOMY.max_batch_size, fits, padded), batch)

    def test_after_a_while_it_is_tried_again(self) -> None:
        queue = filled([item(str(number), length=10) for number in range(96)], padded=False)
        queue.limit_after_out_of_memory(16, 10, now_s=1000.0)
        sizes = [len(queue.take_batch(now_s)) for now_s in (1000.0, 1000.0 + MEMORY_S - 1, 1000.0 + MEMORY_S)]
        self.assertEqual(sizes, [8, 8, 32])

    def test_no_clock_that_is_set_back_makes_that_while_longer(self) -> None:
        queue = filled([item(str(number), length=10) for number in range(96)], padded=False)
        queue.limit_after_out_of_memory(16, 10, now_s=90_000.0)
        self.assertEqual([len(queue.take_batch(now_s)) for now_s in (90_000.0, 3600.0)], [8, 32])

    def test_what_went_through_leaves_nothing_behind(self) -> None:
        queue = BatchQueue(ROOMY, CostModel())
        before = self._alive()
        for n in range(1000):
            queue.add(item(str(n), group=str(n), length=1 + n % 500, priority=n % 7, expires_at_s=1e9))
        self.assertGreater(self._alive(), before + 2000)
        self.assertEqual(sum(len(batch) for batch in batches(queue)), 1000)
        self.assertEqual(self._alive(), before)

    def _alive(self) -> int:
        gc.collect()
        return sum(issubclass(type(thing), Item | SortedList) for thing in gc.get_objects())  # isinstance wakes proxies

    def test_forming_a_batch_weighs_no_more_when_more_wait(self) -> None:
        for padded in (True, False):
            with self.subTest(padded=padded):
                self.assertLessEqual(self._weighed(20_000, padded), 1.2 * self._weighed(500, padded))

    def _weighed(self, waiting: int, padded: bool) -> int:
        costs = CountingCosts()
        queue = filled(
            (item(str(n), length=1 + 7919 * n % 300, arrived_at_s=float(n)) for n in range(waiting)),
            costs=costs,
            padded=padded,
        )
        for _ in range(10):
            queue.take_batch(1e6)
        return costs.predicted


class CountingCosts(CostModel):
    predicted = 0

    def predict_each_call_s(self, sizes: Sequence[int], length: float) -> list[float]:
        self.predicted += len(sizes)
        return super().predict_each_call_s(sizes, length)


class WaitTests(TestCase):
    def queue(self, max_wait_s: float = 5.0, **items: Item) -> BatchQueue:
        return filled(items.values(), Limits(max_batch_size=4, max_batch_tokens=100, max_wait_s=max_wait_s))

    def test_an_empty_queue_is_never_due(self) -> None:
        self.assertIsNone(self.queue().find_due_at_s())
        self.assertIsNone(self.queue().find_first_item())
        self.assertEqual(self.queue().take_batch(0.0), [])

    def test_no_wait_means_at_once(self) -> None:
        queue = self.queue(max_wait_s=0.0, future=item("a", arrived_at_s=1e12))
        self.assertEqual(queue.find_due_at_s(), AT_ONCE)

    def test_one_deadline_counts_from_the_oldest_job_and_not_from_a_later_one(self) -> None:
        queue = self.queue(old=item("old", arrived_at_s=3.0, priority=3))
        self.assertEqual(queue.find_due_at_s(), 8.0)
        queue.add(item("young", arrived_at_s=7.0, priority=1))
        self.assertEqual(queue.find_due_at_s(), 8.0)
        queue.remove("old")
        self.assertEqual(queue.find_due_at_s(), 12.0)

    def test_a_batch_full_of_items_goes_at_once(self) -> None:
        queue = self.queue(one=item("one", size=3))
        self.assertEqual(queue.find_due_at_s(), 5.0)
        queue.add(item("two", arrived_at_s=1.0))
        self.assertEqual(queue.find_due_at_s(), AT_ONCE)

    def test_a_batch_full_of_tokens_goes_at_once(self) -> None:
        queue = self.queue(one=item("one", length=60))
        self.assertEqual(queue.find_due_at_s(), 5.0)
        queue.add(item("two", length=40))
        self.assertEqual(queue.find_due_at_s(), AT_ONCE)

    def test_a_full_batch_goes_whole_where_its_jobs_came_at_nearly_the_same_time(self) -> None:
        costs = CostModel()
        costs.weights = [0.0, 0.006, *[0.0] * (len(costs.weights) - 2)]  # nothing but the overhead is saved
        limits = Limits(max_batch_size=32, max_batch_tokens=10_000, max_wait_s=30.0)
        queue = filled([item(str(number), arrived_at_s=number / 1000) for number in range(32)], limits, costs)
        self.assertEqual(len(queue.take_batch(0.034)), 32)

    def test_another_group_does_not_make_a_batch_full(self) -> None:
        self.assertEqual(self.queue(one=item("one"), two=item("two", group="b", size=4)).find_due_at_s(), 5.0)


class QueueMachine(RuleBasedStateMachine):
    """Jobs come, go, expire and are taken in any order; a plain dictionary says where each one must be."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = BatchQueue(Limits(max_batch_size=8, max_batch_tokens=2000), CostModel())
        self.waiting: dict[str, Item] = {}
        self.now_s = 0.0

    @rule(name=st.integers(0, 30).map(str), job=jobs, lasts_s=st.none() | times)
    def add(self, name: str, job: dict[str, Any], lasts_s: float | None) -> None:
        new = item(name, **job, expires_at_s=None if lasts_s is None else self.now_s + lasts_s)
        assert self.queue.add(new) == (name not in self.waiting)
        self.waiting.setdefault(name, new)

    @rule(name=st.integers(0, 30).map(str))
    def remove(self, name: str) -> None:
        assert self.queue.remove(name) == self.waiting.pop(name, None)

    @rule(padded=st.booleans())
    def learn(self, padded: bool) -> None:
        self.queue.padded = padded

    @rule(passed_s=times)
    def wait(self, passed_s: float) -> None:
        self.now_s += passed_s

    @rule()
    def expire(self) -> None:
        expired = self.queue.remove_expired(self.now_s)
        assert {job.id for job in expired} == {job.id for job in self.waiting.values() if self._is_late(job)}
        for job in expired:
            assert self.waiting.pop(job.id) == job

    @rule()
    @precondition(lambda self: self.waiting)
    def take(self) -> None:
        batch = self.queue.take_batch(self.now_s)
        assert bool(batch) == any(not self._is_late(job) for job in self.waiting.values())
        for job in batch:
            assert not self._is_late(job)
            assert self.waiting.pop(job.id) == job

    @invariant()
    def all_are_counted(self) -> None:
        in_time = sum(not self._is_late(job) for job in self.waiting.values())
        assert in_time <= len(self.queue) <= len(self.waiting)

    def _is_late(self, job: Item) -> bool:
        return job.expires_at_s is not None and job.expires_at_s <= self.now_s


class QueueTests(QueueMachine.TestCase):  # type: ignore[misc, valid-type]  # made when it runs
    """No job is lost, doubled, or run after its deadline, whatever happens to it."""

    settings = QUICK


def cost_s(jobs: list[Item]) -> float:
    """Of an engine that pads nothing, and runs at most 32 rows at a time."""
    size, length = shape(jobs, padded=False)
    calls = math.ceil(size / ROOMY.max_batch_size)
    return calls * cpu(size // calls, int(length))


class ManyRowsTests(TestCase):
    """A job of a thousand sentences beside jobs of one text."""

    def batches(self, *, large_every: int) -> list[int]:
        """How many jobs of one text share a call, in the end, if so many calls bring another large one."""
        spec = ModelSpec(name="m", engine="x:Y", task="sentence-similarity", max_length=256)
        size, length = measure_inputs(
            spec, {"source_sentence": "it was good " * 5, "sentences": ["it was good " * 5] * 1000}
        )
        queue = filled([], padded=False)
        found, numbers, chance = [], itertools.count(), random.Random(1)
        for call in range(250):
            if call % large_every == 0:
                queue.add(item(f"large {call}", size=size, length=length, arrived_at_s=float(next(numbers))))
            while len(queue) < 64:
                name = f"{call} {len(queue)}"
                queue.add(item(name, length=chance.randint(8, 20), arrived_at_s=float(next(numbers))))
            batch = queue.take_batch(float(next(numbers)))
            queue.learn_call(*shape(batch, padded=False), cost_s(batch), jobs=len(batch))
            found += [len(batch)] * (batch[0].size == 1)
        return found[100:]

    def test_it_goes_alone_and_the_others_batches_stay_as_large(self) -> None:
        without = fmean(self.batches(large_every=10**9))
        self.assertGreater(fmean(self.batches(large_every=5)), 0.9 * without)

    def test_what_a_batch_s_worth_of_its_rows_took_is_learnt(self) -> None:
        queue = BatchQueue(ROOMY, CostModel())
        for _ in range(100):
            for size in (1, 8, 32, 960):
                queue.learn_call(size, 20, cost_s([item("a", size=size, length=20)]), jobs=1)
        for size in (1, 8, 32):
            expected = cost_s([item("a", size=size, length=20)])
            self.assertAlmostEqual(queue.costs.predict_call_s(size, 20) / expected, 1.0, delta=0.1)

    def test_no_text_is_longer_than_the_model_reads(self) -> None:
        queue = BatchQueue(ROOMY, CostModel())
        queue.cut_at = 512
        for name, length in (("long", 19_802), ("short", 20)):
            queue.add(item(name, length=length))
        self.assertEqual(sorted(job.length for batch in batches(queue) for job in batch), [20, 512])
        self.assertEqual(*(queue.estimate_item_cost_s(item("long", length=length)) for length in (512, 19_802)))
