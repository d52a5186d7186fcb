"""What is loaded and unloaded: single decisions, over random states; turns over time are in test_turns.py."""

import math
from dataclasses import replace
from typing import Any
from unittest import TestCase

from hypothesis import example, given
from hypothesis import strategies as st

from inference.residency_policy.change_choice import LINGER, SHORTEST_LOAD_S, STEP_S, TURN, Change, Model, choose_change
from tests.properties import QUICK

NOW_S = 10_000.0
ROOM = 12
past = st.floats(0, NOW_S)


def model(name: str = "a", **values: Any) -> Model:
    return Model(**{"name": name, "memory": 4, "load_s": 2.0, "idle_unload_s": 60.0, **values})


def resident(name: str, *, loaded_s_ago: float, worked_s_ago: float | None = None, **values: Any) -> Model:
    """In memory; without `worked_s_ago` it works."""
    worked_at_s = NOW_S - (worked_s_ago or 0.0)
    is_working = worked_s_ago is None
    return model(name, loaded_at_s=NOW_S - loaded_s_ago, worked_at_s=worked_at_s, is_working=is_working, **values)


def waiting(name: str, *, since_s_ago: float = 0.0, **values: Any) -> Model:
    return model(name, waits_since_s=NOW_S - since_s_ago, **values)


def change(*models: Model, room: int = ROOM) -> Change:
    return choose_change(models, room=room, now_s=NOW_S)


@st.composite
def states(draw: st.DrawFn) -> list[Model]:
    """Any, also of more in memory than there is room, as when a model took more than was estimated."""
    return [draw(_inside(f"in{number}")) for number in range(draw(st.integers(0, 5)))] + [
        draw(_outside(f"out{number}")) for number in range(draw(st.integers(0, 5)))
    ]


def _inside(name: str) -> st.SearchStrategy[Model]:
    return st.builds(
        model,
        st.just(name),
        memory=st.integers(1, ROOM),
        load_s=st.floats(0, 100),
        loaded_at_s=past,
        worked_at_s=past,
        is_working=st.booleans(),
        is_kept=st.booleans(),
        idle_unload_s=st.floats(1, 1000),
    )


def _outside(name: str) -> st.SearchStrategy[Model]:
    return st.builds(
        model,
        st.just(name),
        memory=st.integers(1, ROOM + 2),
        waits_since_s=st.none() | past,
        priority=st.integers(1, 3),
        not_before_s=st.sampled_from([-math.inf, NOW_S - 1, NOW_S + 1]),
    )


class PropertyTests(TestCase):
    @QUICK
    @given(states())
    def test_what_is_left_and_loaded_fits(self, models: list[Model]) -> None:
        made = change(*models)
        left = [m for m in models if (m.loaded_at_s is not None and m.name not in made.unload) or m.name == made.load]
        if made.load or not any(m.is_kept for m in left):
            self.assertLessEqual(sum(m.memory for m in left), ROOM)

    @QUICK
    @given(states())
    def test_nothing_leaves_but_for_a_reason(self, models: list[Model]) -> None:
        made = change(*models)
        inside = [m for m in models if m.loaded_at_s is not None]
        self.assertLessEqual(set(made.unload), {m.name for m in inside if not m.is_kept})
        if sum(m.memory for m in inside) <= ROOM:
            for leaving in (m for m in inside if m.name in made.unload and not m.is_idle(NOW_S)):
                self.assertIsNotNone(made.load)
                self.assertLessEqual(leaving.compute_earliest_unload_s(), NOW_S)

    @QUICK
    @given(states())
    @example(  # more in memory than there is room, and what leaves for the load is larger than that and the load
        [
            resident("may leave", memory=3, loaded_s_ago=9000.0, worked_s_ago=900.0, idle_unload_s=1000.0),
            resident("kept", memory=3, loaded_s_ago=9000.0, is_kept=True),
            resident("large", memory=7, loaded_s_ago=9000.0),
            waiting("waits", memory=3),
        ]
    )
    def test_nothing_leaves_for_a_load_that_fits_without(self, models: list[Model]) -> None:
        made = change(*models)
        by_name = {m.name: m for m in models}
        if made.load:
            staying = sum(m.memory for m in models if m.loaded_at_s is not None and m.name not in made.unload)
            for leaving in (by_name[name] for name in made.unload if not by_name[name].is_idle(NOW_S)):
                self.assertGreater(staying + leaving.memory + by_name[made.load].memory, ROOM)

    @QUICK
    @given(states())
    def test_what_is_loaded_waits_and_can_be(self, models: list[Model]) -> None:
        if name := change(*models).load:
            [loaded] = [m for m in models if m.name == name]
            self.assertIsNone(loaded.loaded_at_s)
            self.assertIsNotNone(loaded.waits_since_s)
            self.assertLessEqual(loaded.not_before_s, NOW_S)

    @QUICK
    @given(states())
    def test_the_order_of_the_models_changes_nothing(self, models: list[Model]) -> None:
        self.assertEqual(change(*models), change(*reversed(models)))


class DecisionTests(TestCase):
    def test_what_waits_is_loaded_where_there_is_room_and_nothing_else_is(self) -> None:
        self.assertEqual(change(model("a"), waiting("b")), Change(load="b"))

    def test_what_is_larger_than_the_room_is_not_loaded(self) -> None:
        self.assertEqual(change(waiting("b", memory=ROOM + 1)), Change())

    def test_one_without_work_goes_after_its_time(self) -> None:
        self.assertEqual(change(resident("a", loaded_s_ago=99, worked_s_ago=59.0)), Change())
        self.assertEqual(change(resident("a", loaded_s_ago=99, worked_s_ago=60.0)), Change(unload=("a",)))
        self.assertEqual(change(resident("a", loaded_s_ago=99)), Change())

    def test_the_first_in_line_goes_first(self) -> None:
        made = change(waiting("a", since_s_ago=5), waiting("b", since_s_ago=9), waiting("c", since_s_ago=7))
        self.assertEqual(made, Change(load="b"))

    def test_a_higher_priority_goes_first_but_not_for_ever(self) -> None:
        high = waiting("high", priority=1)
        self.assertEqual(change(high, waiting("low", priority=3, since_s_ago=2 * STEP_S - 1)), Change(load="high"))
        self.assertEqual(change(high, waiting("low", priority=3, since_s_ago=2 * STEP_S + 1)), Change(load="low"))

    def test_one_with_work_keeps_its_place_for_its_turn(self) -> None:
        turn_s = TURN * 2.0
        self.assertEqual(change(resident("a", loaded_s_ago=turn_s - 1), waiting("b"), room=4), Change())
        made = change(resident("a", loaded_s_ago=turn_s), waiting("b"), room=4)
        self.assertEqual(made, Change(unload=("a",), load="b"))
        self.assertEqual(change(resident("a", loaded_s_ago=turn_s, is_kept=True), waiting("b"), room=4), Change())

    def test_one_that_loads_at_once_is_not_unloaded_at_once(self) -> None:
        loaded = resident("a", loaded_s_ago=TURN * SHORTEST_LOAD_S - 0.1, load_s=0.001)
        self.assertEqual(change(loaded, waiting("b"), room=4), Change())

    def test_one_without_work_gives_way_after_a_moment(self) -> None:
        idle = resident("a", loaded_s_ago=3.0, worked_s_ago=LINGER * 2.0)
        self.assertEqual(change(idle, waiting("b"), room=4), Change(unload=("a",), load="b"))
        busy = replace(idle, worked_at_s=NOW_S)
        self.assertEqual(change(busy, waiting("b"), room=4), Change())

    def test_the_one_without_work_for_longest_gives_way(self) -> None:
        models = [
            resident("a", loaded_s_ago=99),
            resident("b", loaded_s_ago=20, worked_s_ago=5),
            resident("c", loaded_s_ago=50, worked_s_ago=9),
        ]
        self.assertEqual(change(*models, waiting("d")), Change(unload=("c",), load="d"))

    def test_the_first_is_not_overtaken_by_what_would_take_its_room(self) -> None:
        first, second = waiting("big", memory=9, since_s_ago=5), waiting("small", memory=4)
        self.assertEqual(change(resident("a", memory=6, loaded_s_ago=1), first, second), Change())

    def test_what_fits_beside_the_first_does_not_wait_for_it(self) -> None:
        first, second = waiting("big", memory=9, since_s_ago=5), waiting("small", memory=3)
        self.assertEqual(change(resident("a", memory=6, loaded_s_ago=1), first, second), Change(load="small"))

    def test_what_took_more_than_was_estimated_is_corrected(self) -> None:
        models = [resident("a", loaded_s_ago=9, memory=8), resident("b", loaded_s_ago=1, memory=8)]
        self.assertEqual(len(change(*models).unload), 1)
        self.assertEqual(change(resident("a", loaded_s_ago=0, memory=ROOM + 1)), Change(unload=("a",)))
