"""Owners in turn and priorities that all have their share, as properties of the queue in simulated time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count
from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulator.workloads import LENGTHS, MACHINES
from inference.batching import shares
from inference.batching.costs import CostModel
from inference.batching.queue import BatchQueue, Item, Limits
from inference.batching.shares import ONE_IN, OwnerShares, PriorityShares
from tests.properties import QUICK

ROOMY = Limits(max_batch_size=32, max_batch_tokens=8192)


class Line:
    """The queue of one model, whose items have their turns as a worker gives them."""

    def __init__(self, *, padded: bool = True, limits: Limits = ROOMY) -> None:
        self.queue = BatchQueue(limits, CostModel())
        self.queue.padded = padded
        self.owners = OwnerShares()
        self.numbers = count()

    def add(self, owner: str | None, *, length: int = 10, size: int = 1) -> str:
        number = next(self.numbers)
        item = Item(str(number), "", size, length, 2, arrived_at_s=float(number), owner=owner)
        self.queue.add(item._replace(turn=self.owners.assign_turn(owner, self.queue.estimate_item_cost_s(item))))
        return item.id

    def take(self) -> list[Item]:
        if head := self.queue.find_first_item():
            self.owners.advance_to_turn(head.turn)
        return self.queue.take_batch(0.0)

    def batches_until(self, id: str) -> int:
        """Return in which of the next batches the item is."""
        return next(number for number in count(1) if any(item.id == id for item in self.take()))


class OwnerTests(TestCase):
    @QUICK
    @given(st.integers(1, 300), st.integers(0, 8), st.integers(1, 600), st.booleans())
    def test_the_first_item_of_an_owner_is_in_the_next_batch_whatever_another_one_has(
        self, jobs: int, before: int, length: int, padded: bool
    ) -> None:
        line = Line(padded=padded)
        for number in range(jobs):
            line.add("many", length=1 + 37 * number % 300)
        for _ in range(before):
            line.take()
        self.assertLessEqual(line.batches_until(line.add("few", length=length)), 2)

    @QUICK
    @given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(0, 6))
    def test_among_many_owners_it_waits_for_one_batch_of_each_at_most(self, jobs: list[int], before: int) -> None:
        line = Line()
        for owner, most in enumerate(jobs):
            for _ in range(most):
                line.add(str(owner), size=32)
        for _ in range(before):
            line.take()
        self.assertLessEqual(line.batches_until(line.add("new", size=32)), len(jobs) + 1)

    def test_owners_with_much_to_do_have_equal_shares(self) -> None:
        for padded in (True, False):
            with self.subTest(padded=padded):
                line, taken = Line(padded=padded), Counter[str | None]()
                for _ in range(400):
                    line.add("first")
                for _ in range(400):
                    line.add("second")
                for _ in range(10):
                    taken.update(item.owner for item in line.take())
                self.assertLess(abs(taken["first"] - taken["second"]), 33)

    def test_a_share_is_of_time_and_not_of_jobs(self) -> None:
        line, taken = Line(limits=Limits(max_batch_size=1, max_batch_tokens=8192)), Counter[str | None]()
        for _ in range(200):
            line.add("long", length=400)
            line.add("short", length=40)
        for _ in range(110):
            taken.update(item.owner for item in line.take())
        self.assertGreater(taken["short"], 3 * taken["long"])

    def test_one_owner_alone_is_served_in_the_order_of_arrival(self) -> None:
        line = Line(limits=Limits(max_batch_size=1, max_batch_tokens=8192))
        ids = [line.add(None, length=1 + 53 * number % 300) for number in range(50)]
        self.assertEqual([item.id for _ in ids for item in line.take()], ids)

    def test_who_was_away_has_no_more_than_its_share_later(self) -> None:
        owners = OwnerShares()
        for _ in range(100):
            owners.advance_to_turn(owners.assign_turn("many", 1.0))
        first, second = owners.assign_turn("few", 1.0), owners.assign_turn("few", 1.0)
        self.assertEqual((first, second), (owners.now, owners.now + 1.0))

    def test_owners_are_forgotten_once_their_turn_has_come(self) -> None:
        owners = OwnerShares()
        for number in range(2 * shares.MOST_REMEMBERED):
            owners.advance_to_turn(owners.assign_turn(number, 1.0))
            owners.advance_to_turn(owners.now + 1.0)
        self.assertLessEqual(len(owners._until), shares.MOST_REMEMBERED + 1)  # noqa: SLF001 - what it keeps is not shown

    def test_many_owners_before_their_turn_are_not_gone_through_for_each_job(self) -> None:
        owners = OwnerShares()
        kept = [id(owners._until)]  # noqa: SLF001 - as above: another one each time
        for number in range(3 * shares.MOST_REMEMBERED):
            owners.assign_turn(number, 1.0)
            if kept[-1] != id(owners._until):  # noqa: SLF001
                kept.append(id(owners._until))  # noqa: SLF001
        self.assertLess(len(kept), 5)

    def test_turns_cost_less_than_three_percent_of_the_throughput(self) -> None:
        for machine in ("cpu", "gpu"):
            with self.subTest(machine):
                own, shared = (self.seconds(machine, owners) for owners in (("one",), ("many", "many", "many", "few")))
                self.assertLess(shared, own / 0.97)

    def seconds(self, machine: str, owners: Iterable[str]) -> float:
        """Return the time that the batches of the same texts take, which come from owners by chance."""
        chance = random.Random(1)
        lengths = [LENGTHS["mixed"](chance) for _ in range(3000)]
        job_owners = [chance.choice(list(owners)) for _ in lengths]
        line, cost, arriving = Line(), MACHINES[machine], zip(job_owners, lengths, strict=True)
        took_s = 0.0
        for owner, length in take(arriving, 128):
            line.add(owner, length=length)
        while batch := line.take():
            longest = max(item.length for item in batch)
            seconds = cost.seconds(len(batch), longest)
            line.queue.learn_call(len(batch), longest, seconds, jobs=len(batch))
            took_s += seconds
            for owner, length in take(arriving, len(batch)):
                line.add(owner, length=length)
        return took_s


def take(arriving: Iterator[tuple[str, int]], most: int) -> Iterator[tuple[str, int]]:
    for _ in range(most):
        if (following := next(arriving, None)) is None:
            return
        yield following


class PriorityTests(TestCase):
    def order(self, waiting: set[int], batches: int) -> list[int]:
        """Return the priorities of the next batches, while jobs of all these wait."""
        priorities, taken = PriorityShares(), []
        for _ in range(batches):
            taken.append(priorities.find_owed_priority(waiting) or min(waiting))
            priorities.count_batch(taken[-1], waiting)
        return taken

    def test_one_batch_in_so_many_is_for_the_lower(self) -> None:
        self.assertEqual(self.order({1, 2}, 2 * ONE_IN), [*[1] * (ONE_IN - 1), 2] * 2)

    def test_each_of_two_lower_ones_has_one(self) -> None:
        taken = Counter(self.order({1, 2, 3}, 10 * ONE_IN))
        self.assertGreaterEqual(min(taken[2], taken[3]), 9)
        self.assertGreater(taken[1], 7 * ONE_IN)

    def test_nothing_is_owed_to_what_does_not_wait(self) -> None:
        priorities = PriorityShares()
        for _ in range(100):
            priorities.count_batch(1, {1})
        self.assertIsNone(priorities.find_owed_priority({1, 2}))
