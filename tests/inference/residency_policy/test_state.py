from unittest import TestCase

from inference.residency_policy.change_choice import Change
from inference.residency_policy.state import FIRST_PAUSE_S, LONGEST_PAUSE_S, MIB, UNKNOWN, ResidencyState, Waiting


class ResidencyStateTests(TestCase):
    def setUp(self) -> None:
        self.residency = ResidencyState()
        self.residency.room = 100 * MIB
        for name in ("a", "b"):
            self.residency.register_model(name, idle_unload_s=60.0, memory=60 * MIB)

    def see(self, now_s: float, *waiting: str, working: tuple[str, ...] = ()) -> Change | None:
        found = {name: Waiting(since_s=0.0, priority=2) for name in waiting}
        self.residency.update_demand(found, working=working, kept=(), now_s=now_s)
        return self.residency.begin_next_change(now_s)

    def load(self, name: str, now_s: float, **values: int) -> None:
        change = self.see(now_s, name)
        assert change
        self.assertEqual(change.load, name)
        self.residency.finish_change(now_s + 2.0, **values)

    def test_nothing_is_decided_while_a_change_is_made(self) -> None:
        self.assertEqual(self.see(0.0, "a"), Change(load="a"))
        self.assertEqual((self.residency.loading_model, self.residency.models_in_memory), ("a", frozenset()))
        self.assertIsNone(self.see(1.0, "b"))
        self.residency.finish_change(2.0)
        self.assertEqual((self.residency.loading_model, self.residency.models_in_memory), (None, {"a"}))

    def test_it_learns_how_long_a_load_takes_and_what_memory(self) -> None:
        self.load("a", 0.0, memory=70 * MIB)
        model = self.residency.models["a"]
        self.assertEqual((model.load_s, model.memory), (2.0, 70 * MIB))

    def test_who_has_had_a_turn_stands_at_the_end_of_the_line(self) -> None:
        """Also when its jobs are the oldest: else two with old jobs would have all turns."""
        self.load("a", 0.0)
        self.see(100.0, "b", working=("a",))
        self.assertEqual(self.residency.change, Change(unload=("a",), load="b"))
        self.residency.finish_change(102.0)
        self.see(103.0, "a", working=("b",))
        self.assertEqual(self.residency.models["a"].waits_since_s, 100.0)

    def test_a_load_that_failed_is_tried_again_later_each_time(self) -> None:
        now_s, pauses = 0.0, []
        for _ in range(12):
            self.assertEqual(self.see(now_s, "a"), Change(load="a"))
            self.residency.record_failed_load("a", now_s, "no weights.")
            pauses.append(self.residency.models["a"].not_before_s - now_s)
            self.assertIsNone(self.see(now_s + pauses[-1] - 0.1, "a"))
            now_s += pauses[-1]
        self.assertEqual(pauses[:3], [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S])
        self.assertEqual(pauses[-1], LONGEST_PAUSE_S)
        self.assertEqual(self.residency.find_load_obstacles(), {"a": "no weights."})
        self.load("a", now_s)
        self.assertEqual(self.residency.find_load_obstacles(), {})

    def test_one_that_fails_lets_the_others_have_their_turn(self) -> None:
        self.see(0.0, "a", "b")
        self.residency.record_failed_load("a", 1.0, "no weights.")
        self.assertEqual(self.see(2.0, "a", "b"), Change(load="b"))

    def test_what_is_larger_than_the_room_says_so(self) -> None:
        self.residency.register_model("c", idle_unload_s=60.0, memory=150 * MIB)
        self.assertIsNone(self.see(0.0, "c"))
        self.assertIn("needs 150 MiB, and lazy models have 100 MiB", self.residency.find_load_obstacles()["c"])

    def test_what_nothing_is_known_of_is_loaded_once_to_find_out(self) -> None:
        self.residency.register_model("c", idle_unload_s=60.0, memory=None)
        self.assertGreater(UNKNOWN, self.residency.room)
        self.load("c", 0.0, memory=5 * MIB)
        self.load("a", 2.0)
        self.assertEqual(self.residency.models_in_memory, {"a", "c"})

    def test_one_that_is_lost_is_loaded_again_for_its_next_job(self) -> None:
        self.load("a", 0.0)
        self.residency.record_unload("a")
        self.assertIsNone(self.see(3.0))
        self.assertEqual(self.see(4.0, "a"), Change(load="a"))

    def test_one_that_the_catalog_has_no_more_is_forgotten(self) -> None:
        self.see(0.0, "a")
        self.residency.forget_model("a")
        self.residency.finish_change(1.0)
        self.assertEqual((self.residency.models_in_memory, self.residency.change), (frozenset(), None))
