"""Slots: two at once, lent while waiting, and never a reason to stand still."""

import threading
from unittest import TestCase
from unittest.mock import patch

from inference.store import connections
from inference.web_process import compute_slots
from inference.web_process.compute_slots import AT_ONCE, ComputeSlots
from tests.conditions import PATIENCE_S, eventually


class ComputeSlotsTests(TestCase):
    def setUp(self) -> None:
        self.slots = ComputeSlots()
        self.inside: list[int] = []
        self.go_on = threading.Event()
        self.threads: list[threading.Thread] = []
        self.addCleanup(self.leave)

    def enter(self, count: int) -> None:
        for number in range(count):
            self.threads.append(threading.Thread(target=self.compute, args=(number,)))
            self.threads[-1].start()

    def compute(self, number: int) -> None:
        self.slots.take_slot()
        self.inside.append(number)
        self.go_on.wait(PATIENCE_S)
        compute_slots.return_slot()

    def waiting(self) -> int:
        return len(self.slots._waiting)  # noqa: SLF001

    def assert_taken(self, slots: int) -> None:
        self.assertEqual(AT_ONCE - self.slots.free, slots)

    def leave(self) -> None:
        self.go_on.set()
        for thread in self.threads:
            thread.join()

    def test_no_more_than_two_compute_at_once(self) -> None:
        with patch.object(compute_slots, "PATIENCE_S", PATIENCE_S):
            self.enter(AT_ONCE + 3)
            eventually(lambda: (len(self.inside), self.waiting()) == (AT_ONCE, 3), "two compute, the others wait")
            self.assertEqual(self.slots.free, 0)
            self.leave()
        self.assertEqual(len(self.inside), AT_ONCE + 3)

    def test_a_slot_is_lent_while_its_thread_waits(self) -> None:
        self.slots.take_slot()
        with compute_slots.lend_slot():
            self.enter(AT_ONCE)
            eventually(lambda: len(self.inside) == AT_ONCE)
            self.leave()
        self.assert_taken(1)
        compute_slots.return_slot()

    def test_who_waits_for_another_request_lends_slot_and_connection(self) -> None:
        self.slots.take_slot()
        with patch.object(connections, "release_connection") as give_back, compute_slots.release_while_waiting(1.0):
            self.assertEqual(give_back.call_count, 1)
            self.assert_taken(0)
        self.assert_taken(1)
        compute_slots.return_slot()

    def test_who_has_waited_long_goes_on_without_a_slot(self) -> None:
        with patch.object(compute_slots, "PATIENCE_S", 0.01):
            self.enter(AT_ONCE + 3)
            eventually(lambda: len(self.inside) == AT_ONCE + 3)

    def test_what_is_taken_or_given_back_twice_counts_once(self) -> None:
        for _ in range(2):
            self.slots.take_slot()
        self.assert_taken(1)
        for _ in range(2):
            compute_slots.return_slot()
        self.assert_taken(0)

    def test_who_has_no_slot_lends_none(self) -> None:
        with compute_slots.lend_slot():
            pass
        self.assert_taken(0)
