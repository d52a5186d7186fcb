from unittest import TestCase

from inference.residency.policy import Change
from inference.residency.residents import FIRST_PAUSE_S, LONGEST_PAUSE_S, MIB, UNKNOWN, Residents, Waiting


class ResidentsTests(TestCase):
    def setUp(self) -> None:
        self.residents = Residents()
        self.residents.room = 100 * MIB
        for name in ("a", "b"):
            self.residents.add(name, idle_unload_s=60.0, memory=60 * MIB)

    def see(self, now_s: float, *waiting: str, working: tuple[str, ...] = ()) -> Change | None:
        found = {name: Waiting(since_s=0.0, priority=2) for name in waiting}
        self.residents.see(found, working=working, kept=(), now_s=now_s)
        return self.residents.next_change(now_s)

    def load(self, name: str, now_s: float, **values: int) -> None:
        change = self.see(now_s, name)
        assert change
        self.assertEqual(change.load, name)
        self.residents.done(now_s + 2.0, **values)

    def test_nothing_is_decided_while_a_change_is_made(self) -> None:
        self.assertEqual(self.see(0.0, "a"), Change(load="a"))
        self.assertEqual((self.residents.loading, self.residents.inside), ("a", frozenset()))
        self.assertIsNone(self.see(1.0, "b"))
        self.residents.done(2.0)
        self.assertEqual((self.residents.loading, self.residents.inside), (None, {"a"}))

    def test_it_learns_how_long_a_load_takes_and_what_memory(self) -> None:
        self.load("a", 0.0, memory=70 * MIB)
        model = self.residents.models["a"]
        self.assertEqual((model.load_s, model.memory), (2.0, 70 * MIB))

    def test_who_has_had_a_turn_stands_at_the_end_of_the_line(self) -> None:
        """Also when its jobs are the oldest: else two with old jobs would have all turns."""
        self.load("a", 0.0)
        self.see(100.0, "b", working=("a",))
        self.assertEqual(self.residents.change, Change(unload=("a",), load="b"))
        self.residents.done(102.0)
        self.see(103.0, "a", working=("b",))
        self.assertEqual(self.residents.models["a"].waits_since_s, 100.0)

    def test_a_load_that_failed_is_tried_again_later_each_time(self) -> None:
        now_s, pauses = 0.0, []
        for _ in range(12):
            self.assertEqual(self.see(now_s, "a"), Change(load="a"))
            self.residents.failed("a", now_s, "no weights.")
            pauses.append(self.residents.models["a"].not_before_s - now_s)
            self.assertIsNone(self.see(now_s + pauses[-1] - 0.1, "a"))
            now_s += pauses[-1]
        self.assertEqual(pauses[:3], [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S])
        self.assertEqual(pauses[-1], LONGEST_PAUSE_S)
        self.assertEqual(self.residents.why_not(), {"a": "no weights."})
        self.load("a", now_s)
        self.assertEqual(self.residents.why_not(), {})

    def test_one_that_fails_lets_the_others_have_their_turn(self) -> None:
        self.see(0.0, "a", "b")
        self.residents.failed("a", 1.0, "no weights.")
        self.assertEqual(self.see(2.0, "a", "b"), Change(load="b"))

    def test_what_is_larger_than_the_room_says_so(self) -> None:
        self.residents.add("c", idle_unload_s=60.0, memory=150 * MIB)
        self.assertIsNone(self.see(0.0, "c"))
        self.assertIn("needs 150 MiB, and lazy models have 100 MiB", self.residents.why_not()["c"])

    def test_what_nothing_is_known_of_is_loaded_once_to_find_out(self) -> None:
        self.residents.add("c", idle_unload_s=60.0, memory=None)
        self.assertGreater(UNKNOWN, self.residents.room)
        self.load("c", 0.0, memory=5 * MIB)
        self.load("a", 2.0)
        self.assertEqual(self.residents.inside, {"a", "c"})

    def test_one_that_is_lost_is_loaded_again_for_its_next_job(self) -> None:
        self.load("a", 0.0)
        self.residents.lost("a")
        self.assertIsNone(self.see(3.0))
        self.assertEqual(self.see(4.0, "a"), Change(load="a"))

    def test_one_that_the_catalog_has_no_more_is_forgotten(self) -> None:
        self.see(0.0, "a")
        self.residents.remove("a")
        self.residents.done(1.0)
        self.assertEqual((self.residents.inside, self.residents.change), (frozenset(), None))
