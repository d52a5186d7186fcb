"""Turns over time, in simulated time: whatever comes, the models fit, keep their turns, and each has one."""

from __future__ import annotations

from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulator.turns import POLL_S, Arrival, LazyModel, Turns
from benchmarks.turns import Traffic, run
from inference.residency_policy.change_choice import SHORTEST_LOAD_S, STEP_S, TURN
from tests.properties import QUICK

ROOM = 10
CALL_S = 0.2
NAMES = [f"m{number}" for number in range(6)]

models = st.fixed_dictionaries(
    {
        name: st.builds(
            LazyModel,
            memory=st.integers(1, ROOM),
            load_s=st.floats(0.1, 10.0),
            call_s=st.just(CALL_S),
            batch=st.just(2),
            idle_unload_s=st.floats(1.0, 100.0),
        )
        for name in NAMES
    }
)
arrivals = st.lists(
    st.builds(Arrival, st.floats(0, 200), st.sampled_from(NAMES), st.integers(1, 3)), min_size=1, max_size=200
)


def longest_wait_s(catalog: dict[str, LazyModel]) -> float:
    """For its load, of any model: what docs/guide/lazy-models.md states."""
    slowest_s = max(SHORTEST_LOAD_S, *(model.load_s for model in catalog.values()))
    return 2 * STEP_S + len(catalog) * ((TURN + 2) * slowest_s + CALL_S + 2 * POLL_S)


class TurnsTests(TestCase):
    @QUICK
    @given(models, arrivals)
    def test_every_job_ends_within_the_memory(self, catalog: dict[str, LazyModel], jobs: list[Arrival]) -> None:
        outcome = Turns(catalog, jobs, ROOM).run()
        self.assertEqual(len(outcome.waits_s), len(jobs))
        self.assertLessEqual(outcome.most_memory, ROOM)

    @QUICK
    @given(models, arrivals)
    def test_nothing_starves(self, catalog: dict[str, LazyModel], jobs: list[Arrival]) -> None:
        outcome = Turns(catalog, jobs, ROOM).run()
        self.assertLessEqual(max(outcome.first_waits_s.values()), longest_wait_s(catalog))

    @QUICK
    @given(models, arrivals)
    def test_nothing_thrashes(self, catalog: dict[str, LazyModel], jobs: list[Arrival]) -> None:
        """Who has work stays for its turn, of which its load is a ninth."""
        for name, began_s, ended_s, had_work in Turns(catalog, jobs, ROOM).run().stays:
            if had_work:
                self.assertGreaterEqual(ended_s - began_s, TURN * max(SHORTEST_LOAD_S, catalog[name].load_s) - 1e-6)

    def test_a_model_with_endless_work_keeps_no_other_out(self) -> None:
        catalog = {name: LazyModel(memory=ROOM, load_s=2.0, call_s=CALL_S) for name in NAMES[:3]}
        flood = [Arrival(number / 100, NAMES[0], 1) for number in range(30_000)]
        few = [Arrival(5.0, name, 3) for name in NAMES[1:3]]
        outcome = Turns(catalog, sorted(flood + few), ROOM).run()
        self.assertLessEqual(max(outcome.first_waits_s[name] for name in NAMES[1:3]), longest_wait_s(catalog))

    def test_a_load_has_turns_behind_it_where_giving_way_at_once_would_do_nothing_but_load(self) -> None:
        traffic = Traffic(jobs_per_s=20.0, seconds=120.0)
        ours, hasty = (
            run(traffic, room=3, load_s=5.0, call_s=0.1, rules=rules) for rules in ({}, {"TURN": 0.0, "LINGER": 0.0})
        )
        self.assertLess(2 * len(ours.loads), len(hasty.loads))
        self.assertLess(2 * ours.p99_wait_s, hasty.p99_wait_s)

    def test_the_same_seed_gives_the_same_figures(self) -> None:
        first, second = (run(Traffic(seconds=60.0), room=3, load_s=2.0, call_s=0.1, rules={}) for _ in range(2))
        self.assertEqual((first.loads, first.waits_s), (second.loads, second.waits_s))
