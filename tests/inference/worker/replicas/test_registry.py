"""What the replicas of a worker have loaded decides what it serves; real processes: tests/e2e/test_replicas.py."""

import logging
import time
from dataclasses import replace
from unittest import TestCase
from uuid import uuid4

from django.conf import settings

from inference.catalog.specs import ModelSpec
from inference.worker.calls import ENDED_BY_IT, READY, Assignment, LoadReport, SharedState
from inference.worker.maintenance import row_values
from inference.worker.replicas.devices import Plan
from inference.worker.replicas.registry import SLOW_S, OperatorIntents, ReplicaRegistry
from inference.worker.replicas.replica import COUNTED_S, LONGEST_PAUSE_S
from inference.worker.scheduling.residency_controller import LazyStatus
from tests.inference.worker.test_dispatcher import stop_clock

BROKEN = "no weights"
CATALOG = {name: ModelSpec(name=name, engine="x:Y") for name in ("a", "b")}
FIRST, SECOND = 11, 22  # process ids


class ReplicasTests(TestCase):
    def setUp(self) -> None:
        stop_clock(self)
        plan = Plan(worker=uuid4(), devices=("cuda:0", "cuda:1"), replicas=2, threads=1)
        self.replicas = ReplicaRegistry(plan, CATALOG)
        self.start(0, FIRST)
        self.start(1, SECOND)

    def start(self, index: int, pid: int) -> None:
        self.replicas.note_start(index, pid, self.replicas.make_first_assignment(index))

    def load(self, pid: int, **models: str) -> None:
        """The child has what it was assigned, but what `models` says."""
        (replica,) = (replica for replica in self.replicas.replicas if replica.pid == pid)
        states = {key: models.get(self.replicas.goal[key].name, READY) for key in replica.assigned_digests}
        with self.assertLogs("inference.worker.replicas.registry") as logs:
            logging.getLogger("inference.worker.replicas.registry").info("so that there is one")
            self.replicas.note_loaded_models(LoadReport(pid=pid, models=states))
        self.logged = [record.getMessage() for record in logs.records if record.levelno == logging.ERROR]

    def loads(self, index: int, model: str) -> None:
        """Have its process say that it loads this model of those that it was assigned."""
        replica = self.replicas.replicas[index]
        replica.shared.loading = 1 + replica.assigned_digests.index(CATALOG[model].digest)

    def without(self, index: int) -> set[str]:
        return {spec.name for spec in self.replicas.goal.values()} - {
            spec.name for spec in self.replicas.make_first_assignment(index)
        }

    def why_not(self) -> set[str]:
        return set(row_values.find_load_failures(self.replicas))

    def tries(self, *pids: int) -> int | None:
        """Which of these is told to load something."""
        following = self.replicas.begin_next_assignment(pids or (FIRST, SECOND))
        return following[0] if following else None

    def able(self) -> list[int]:
        return [pid for pid in (FIRST, SECOND) if self.replicas.can_child_take_call(pid)]

    def test_what_is_held_back_stays_loaded_and_begins_nothing(self) -> None:
        self.load(FIRST)
        self.load(SECOND)
        self.replicas.apply_pauses_and_drain(OperatorIntents(paused=frozenset({"a", "gone"})))
        self.assertEqual((self.replicas.unpaused_models, self.replicas.served_models), ({"b"}, {"a", "b"}))
        version = self.replicas.version
        self.replicas.apply_pauses_and_drain(OperatorIntents(is_drained=True))
        self.assertGreater(self.replicas.version, version)
        self.assertEqual((self.replicas.unpaused_models, self.replicas.runnable), (set(), {"a", "b"}))
        self.replicas.apply_pauses_and_drain(OperatorIntents())
        self.assertEqual(self.replicas.unpaused_models, {"a", "b"})

    def test_how_often_one_ended_is_shown_but_not_of_one_that_was_to_try_again(self) -> None:
        def ended_counts() -> list[object]:
            return [row.ended for _, row in sorted(row_values.make_replica_values(self.replicas, {}).items())]

        self.load(FIRST)
        self.load(SECOND, a=BROKEN, b=BROKEN)
        self.replicas.note_end(1)  # has nothing, and tries again
        for _ in range(3):
            self.replicas.note_end(0)
            self.start(0, FIRST)
            self.load(FIRST)
        self.assertEqual(ended_counts(), [3, 0])
        self.replicas.replicas[0].ends[0] -= COUNTED_S
        self.assertEqual(ended_counts(), [2, 0])

    def test_nothing_is_served_before_a_replica_has_loaded_it(self) -> None:
        self.assertEqual((self.replicas.unpaused_models, self.replicas.served_models, self.able()), (set(), set(), []))
        self.load(FIRST)
        self.assertEqual(
            (self.replicas.unpaused_models, self.able(), self.replicas.have_all_reported),
            ({"a", "b"}, [FIRST], False),
        )

    def test_one_that_lacks_what_another_runs_is_given_the_rest_and_tries_again_beside_that(self) -> None:
        self.load(FIRST)
        self.load(SECOND, b=BROKEN)
        self.replicas.replicas[1].retry_at = 0.0
        self.assertEqual(
            (self.able(), self.replicas.find_children_to_restart(), self.tries()), ([FIRST, SECOND], [], None)
        )
        self.assertEqual(
            (self.replicas.find_models_child_lacks(FIRST), self.replicas.find_models_child_lacks(SECOND)),
            (set(), {"b"}),
        )
        self.assertEqual(self.replicas.find_models_child_lacks(33), {"a", "b"})
        self.replicas.try_at = 0.0
        self.assertEqual(self.tries(), SECOND)
        self.load(SECOND)
        self.assertEqual(self.replicas.find_models_child_lacks(SECOND), set())

    def test_the_pauses_of_one_that_dies_of_what_another_runs_grow(self) -> None:
        self.load(FIRST)
        pauses = []
        for _ in range(4):
            self.loads(1, "b")
            self.replicas.note_end(1)
            self.start(1, SECOND)
            self.load(SECOND)
            self.assertEqual((self.replicas.find_models_child_lacks(SECOND), self.tries()), ({"b"}, None))
            self.replicas.try_at = 0.0
            self.assertEqual(self.tries(), SECOND)
            pauses.append(self.replicas.tries.pause_s)
        self.assertEqual((pauses, pauses[-1]), (sorted(pauses), LONGEST_PAUSE_S))

    def test_what_all_lack_is_not_served_and_tried_again_beside_the_work(self) -> None:
        self.load(FIRST, b=BROKEN)
        self.load(SECOND, b=BROKEN)
        self.assertEqual((self.replicas.unpaused_models, self.able()), ({"a"}, [FIRST, SECOND]))
        self.assertIsNone(self.tries())
        self.replicas.try_at = 0.0
        self.assertEqual(self.tries(SECOND), SECOND)
        self.load(SECOND)
        self.assertEqual((self.replicas.unpaused_models, self.able()), ({"a", "b"}, [FIRST, SECOND]))

    def eight(self) -> None:
        """Replicas that serve a; none could load b."""
        plan = Plan(worker=uuid4(), devices=("cuda:0",), replicas=8, threads=1)
        self.replicas = ReplicaRegistry(plan, CATALOG)
        for index in range(8):
            self.start(index, index)
        for index in range(8):
            self.load(index, b=BROKEN)
            self.replicas.replicas[index].retry_at = 0.0

    def load_in_turn(self, index: int, **models: str) -> None:
        """By an assignment."""
        self.assertEqual(self.tries(index), index)
        self.load(index, **models)

    def test_what_one_of_many_can_load_is_served_at_once_and_the_others_follow_one_by_one(self) -> None:
        self.eight()
        self.replicas.try_at = 0.0
        for index in range(8):
            self.load_in_turn(index)
            self.assertEqual(
                (self.replicas.unpaused_models, self.replicas.find_children_to_restart()), ({"a", "b"}, [])
            )
            self.assertEqual(
                [pid for pid in range(8) if self.replicas.find_models_child_lacks(pid)], list(range(index + 1, 8))
            )

    def test_what_loads_slowly_is_left_to_one_of_two_where_the_rest_is_not_run(self) -> None:
        self.load(FIRST)
        self.replicas.note_loaded_models(
            LoadReport(
                pid=SECOND,
                models={spec.digest: READY for spec in CATALOG.values()},
                load_s={CATALOG["a"].digest: 0.1, CATALOG["b"].digest: SLOW_S + 1.0},
            )
        )
        for first, second in ((0, 1), (1, 0)):
            pids = (FIRST, SECOND)
            self.replicas.note_end(first)
            self.assertEqual(self.without(first), set())  # the second runs all
            self.start(first, pids[first])
            self.replicas.note_end(second)
            self.assertEqual(self.without(second), {"b"})
            self.start(second, pids[second])
            self.load(pids[second])
            self.assertEqual((self.replicas.unpaused_models, self.tries()), ({"a"}, None))  # there is no other to run a
            self.load(pids[first])
            self.assertEqual((self.replicas.unpaused_models, self.tries()), ({"a", "b"}, pids[second]))
            self.load(pids[second])

    def test_what_cannot_be_loaded_has_nothing_left_out_that_can(self) -> None:
        slow = {CATALOG["b"].digest: SLOW_S + 1.0}
        states = {CATALOG["a"].digest: BROKEN, CATALOG["b"].digest: READY}
        with self.assertLogs("inference.worker.replicas.registry"):
            for pid in (FIRST, SECOND):
                self.replicas.note_loaded_models(LoadReport(pid=pid, models=states, load_s=slow))
        for index in (1, 0):
            self.replicas.note_end(index)
            self.assertEqual(self.without(index), set())
            self.start(index, (FIRST, SECOND)[index])

    def partial(self, pid: int, *names: str, broken: str = "") -> bool:
        """The child, which starts, has loaded these models so far. Return True if it runs them before its next load."""
        states = {CATALOG[name].digest: BROKEN if name == broken else READY for name in names}
        return self.replicas.note_partial_load(LoadReport(pid=pid, models=states, load_s=dict.fromkeys(states, 1.0)))

    def test_one_that_starts_runs_what_it_has_between_two_loads(self) -> None:
        self.assertTrue(self.partial(FIRST, "a"))
        self.assertEqual((self.replicas.unpaused_models, self.replicas.models_runnable_without_load), ({"a"}, {"a"}))
        self.assertTrue(self.replicas.can_child_take_call(FIRST))
        self.assertFalse(self.replicas.have_all_reported)
        shown = row_values.make_replica_values(self.replicas, {})["0"].models
        self.assertEqual([shown[name].state for name in "ab"], ["ready", "loading"])
        self.replicas.note_next_load(FIRST, 1.0)  # it can run nothing during a load, and others are not kept from it
        self.assertEqual((self.replicas.unpaused_models, self.replicas.served_models), (set(), {"a"}))
        self.assertFalse(self.replicas.can_child_take_call(FIRST))
        self.load(FIRST)
        self.assertEqual(self.replicas.unpaused_models, {"a", "b"})

    def test_only_what_no_other_runs_is_run_between_two_loads(self) -> None:
        self.assertTrue(self.partial(FIRST, "a"))
        self.assertFalse(self.partial(SECOND, "a"))
        self.replicas.note_next_load(FIRST, 1.0)
        self.assertTrue(self.partial(SECOND, "a"))
        self.load(FIRST)
        self.replicas.note_end(1)
        self.start(1, SECOND)
        self.assertFalse(self.partial(SECOND, "a"))

    def test_a_model_that_was_removed_meanwhile_is_not_run_between_two_loads(self) -> None:
        self.load(FIRST)
        self.replicas.set_catalog({"a": CATALOG["a"]})
        self.replicas.drop_removed_model("b")
        self.replicas.note_loaded_models(LoadReport(pid=FIRST, models={CATALOG["a"].digest: READY}))
        self.assertFalse(self.partial(SECOND, "a", "b"))
        self.assertFalse(self.replicas.can_child_take_call(SECOND))

    def test_what_could_not_be_loaded_is_not_waited_for(self) -> None:
        self.load(FIRST)
        self.load(SECOND)
        for index in (0, 1):
            self.replicas.note_end(index)
        self.start(0, FIRST)
        self.replicas.replicas[1].note_missing_report({}, frozenset())
        self.partial(FIRST, "a", "b", broken="a")
        self.assertEqual((self.replicas.unpaused_models, self.replicas.served_models), ({"b"}, {"b"}))

    def test_one_that_ends_between_two_loads_failed_to_load_nothing_and_starts_at_once(self) -> None:
        self.partial(FIRST, "a")
        self.replicas.note_end(0)
        self.assertEqual((self.why_not(), self.replicas.served_models), (set(), {"a"}))
        self.assertTrue(self.replicas.may_start(0))
        self.assertEqual(self.replicas.replicas[0].recent_end_count, 1)

    def test_one_that_ends_in_a_start_by_no_known_model_waits_with_the_next(self) -> None:
        self.partial(FIRST, "a")
        self.replicas.note_next_load(FIRST, 1.0)
        with self.assertLogs("inference.worker.replicas.registry", "ERROR"):
            self.replicas.note_end(0)
        self.assertFalse(self.replicas.may_start(0))

    def test_what_another_has_that_loads_is_run_between_two_loads(self) -> None:
        self.load(FIRST)
        self.assertFalse(self.partial(SECOND, "a"))
        self.replicas.replicas[0].note_assignment(tuple(CATALOG.values()))
        self.assertTrue(self.partial(SECOND, "a"))

    def test_what_is_served_is_logged_once_though_it_is_run_only_between_two_loads(self) -> None:
        with self.assertLogs("inference.worker.replicas.registry", "INFO") as logs:
            self.partial(FIRST, "a")
            self.replicas.note_next_load(FIRST, 1.0)
            self.replicas.note_loaded_models(LoadReport(pid=FIRST, models=dict.fromkeys(self.replicas.goal, READY)))
        said = [record.getMessage().partition(" serves ")[2] for record in logs.records]
        self.assertEqual(said, ["a", "b"])

    def test_the_next_process_of_one_that_ended_there_loads_all_before_it_runs_any(self) -> None:
        self.partial(FIRST, "a")
        self.replicas.note_end(0)
        for runs in (False, True):
            self.start(0, FIRST)
            self.assertEqual(self.partial(FIRST, "a"), runs)
            self.load(FIRST)
            self.replicas.note_end(0)

    def test_what_is_known_of_the_others_stays_until_they_are_loaded_again(self) -> None:
        self.replicas.note_loaded_models(
            LoadReport(
                pid=FIRST,
                models={spec.digest: READY for spec in CATALOG.values()},
                notes={"b": "in float16"},
                facts={"b": {"pooling": "mean"}},
                steps=frozenset({CATALOG["b"].digest}),
            )
        )
        self.replicas.note_end(0)
        self.start(0, FIRST)
        self.assertTrue(self.partial(FIRST, "a"))
        shown = row_values.make_replica_values(self.replicas, {})["0"]
        self.assertEqual((shown.notes, shown.facts), ({"b": "in float16"}, {"b": {"pooling": "mean"}}))
        self.assertTrue(self.replicas.generates_by_steps("b"))

    def test_one_that_runs_what_a_starting_one_has_is_not_kept_from_it_by_a_load(self) -> None:
        self.load(FIRST, b=BROKEN)
        self.replicas.try_at = 0.0
        self.assertTrue(self.partial(SECOND, "b"))
        self.assertIsNone(self.tries(FIRST))  # the other one is about to load a, and nothing would run it

    def test_one_that_dies_of_its_next_load_is_to_have_again_what_it_had(self) -> None:
        self.partial(FIRST, "a")
        self.replicas.note_next_load(FIRST, 1.0)
        self.loads(0, "b")
        with self.assertLogs("inference.worker.replicas.registry", "ERROR"):
            self.replicas.note_end(0)
        self.assertEqual((self.why_not(), self.replicas.served_models, self.without(0)), ({"b"}, {"a"}, {"b"}))
        self.assertTrue(self.replicas.may_start(0))

    def test_one_that_cannot_be_ended_is_not_waited_for(self) -> None:
        self.load(FIRST)
        self.partial(SECOND, "a", "b")
        self.replicas.mark_unkillable(SECOND)
        self.assertTrue(self.replicas.have_all_reported)

    def test_what_is_expected_to_load_quickly_is_loaded_first(self) -> None:
        expected = {CATALOG["a"].digest: 10 * SLOW_S, CATALOG["b"].digest: 1.0}
        catalog = {"c": ModelSpec(name="c", engine="x:Y"), **CATALOG}
        self.replicas = ReplicaRegistry(self.replicas.plan, catalog, expected)
        for index in (0, 1):
            self.assertEqual([spec.name for spec in self.replicas.make_first_assignment(index)], ["b", "a", "c"])
            self.start(index, (FIRST, SECOND)[index])
        took = {CATALOG["a"].digest: 1.0, CATALOG["b"].digest: 2.0}
        self.replicas.note_loaded_models(LoadReport(pid=FIRST, models=dict.fromkeys(took, READY), load_s=took))
        self.assertEqual([spec.name for spec in self.replicas.make_first_assignment(0)], ["a", "b", "c"])

    def test_two_that_die_of_each_other_s_model_try_it_after_pauses(self) -> None:
        for index, pid, model in ((0, FIRST, "b"), (1, SECOND, "a")):
            self.loads(index, model)
            self.replicas.note_end(index)
            self.start(index, pid)
        self.load(FIRST)
        self.load(SECOND)
        pauses = []
        for index, pid, model in 3 * ((0, FIRST, "b"), (1, SECOND, "a")):
            self.replicas.try_at = 0.0
            self.assertEqual(self.tries(pid), pid)
            pauses.append(self.replicas.tries.pause_s)
            self.loads(index, model)
            self.replicas.note_end(index)
            self.start(index, pid)
            self.load(pid)
            self.assertIsNone(self.tries())
        self.assertEqual((pauses, pauses[-1]), (sorted(pauses), LONGEST_PAUSE_S))

    def test_what_ends_a_process_is_tried_by_itself_and_last(self) -> None:
        self.loads(0, "b")
        self.replicas.note_end(0)
        self.start(0, FIRST)
        self.load(FIRST)
        self.load(SECOND)
        self.replicas.set_catalog({**CATALOG, "c": ModelSpec(name="c", engine="x:Y")})
        tried = []
        for states in ({"c": BROKEN}, {}, {}):
            self.replicas.try_at = 0.0
            _, assignment = self.replicas.begin_next_assignment([FIRST]) or (0, ())
            tried.append({spec.name for spec in assignment})
            self.load(FIRST, **states)
        self.assertEqual(tried, [{"a", "c"}, {"a", "b"}, {"a", "b", "c"}])

    def test_what_always_fails_keeps_nothing_that_ended_a_process_from_its_next_try(self) -> None:
        self.replicas.set_catalog({**CATALOG, **{name: ModelSpec(name=name, engine="x:Y") for name in "cd"}})
        tried: list[str] = []
        self.start(1, SECOND)
        self.load(SECOND, c=BROKEN)
        self.loads(0, "b")
        self.replicas.note_end(0)
        self.start(0, FIRST)
        self.replicas.replicas[0].shared.loading = len(self.replicas.replicas[0].assigned_digests)  # d
        for _ in range(4):
            self.replicas.note_end(0)
            self.start(0, FIRST)
            self.load(FIRST, c=BROKEN)
            self.replicas.try_at = 0.0
            _, assignment = self.replicas.begin_next_assignment([FIRST]) or (0, ())
            [name] = {spec.name for spec in assignment} - {"a"}
            tried.append(name)
            self.replicas.replicas[0].shared.loading = 1 + [spec.name for spec in assignment].index(name)
        self.assertEqual(set(tried), {"b", "d"})

    def test_they_try_in_turn(self) -> None:
        self.eight()
        tried = []
        for _ in range(8):
            self.replicas.try_at = 0.0
            index = self.tries(*range(8))
            assert index is not None
            tried.append(index)
            self.load(index, b=BROKEN)
        self.assertEqual(sorted(tried), list(range(8)))

    def test_what_is_served_stays_so_while_one_has_it(self) -> None:
        self.eight()
        self.replicas.try_at = 0.0
        for index in range(4):
            self.load_in_turn(index)
        for index in range(3):
            self.replicas.note_end(index)
        self.assertEqual(self.replicas.unpaused_models, {"a", "b"})
        self.replicas.note_end(3)
        self.assertEqual(self.replicas.unpaused_models, {"a"})

    def test_one_that_has_what_the_others_have_not_gets_no_assignment_again_and_again(self) -> None:
        self.eight()
        self.replicas.try_at = 0.0
        self.load_in_turn(0)
        self.replicas.postpone_next_try(took_s=6.0)
        self.load(1, b="no weights, said in other words")
        self.assertIsNone(self.tries(*range(8)))

    def test_a_try_that_took_long_is_seldom_made(self) -> None:
        self.load(FIRST, b=BROKEN)
        self.replicas.postpone_next_try(took_s=1000.0)
        self.assertGreater(self.replicas.try_at, time.monotonic() + 9000)  # the clock stands

    def test_one_that_has_nothing_is_restarted(self) -> None:
        self.load(FIRST, a=BROKEN, b=BROKEN)
        self.replicas.replicas[0].retry_at = 0.0
        self.assertEqual((self.able(), self.replicas.find_children_to_restart()), ([], [0]))

    def test_one_that_ends_after_it_had_loaded_starts_at_once_and_is_waited_for(self) -> None:
        self.load(FIRST)
        self.load(SECOND)
        for index in (0, 1):
            self.replicas.note_end(index)
        self.assertEqual((self.replicas.unpaused_models, self.replicas.served_models), (set(), {"a", "b"}))
        self.assertTrue(self.replicas.may_start(0))
        self.start(0, FIRST)
        self.load(FIRST, b=BROKEN)
        self.start(1, SECOND)
        self.replicas.note_end(1)
        self.assertEqual((self.replicas.unpaused_models, self.replicas.served_models), ({"a"}, {"a"}))

    def test_one_that_dies_while_it_loads_waits_longer_each_time(self) -> None:
        pauses = []
        for _ in range(9):
            self.replicas.note_end(0)
            self.assertFalse(self.replicas.may_start(0))
            pauses.append(self.replicas.replicas[0].backoff.pause_s)
            self.start(0, FIRST)
        self.assertEqual(pauses[:3], [2.0, 4.0, 8.0])
        self.assertEqual(pauses[-1], LONGEST_PAUSE_S)
        self.load(FIRST)
        self.assertEqual(self.replicas.replicas[0].backoff.pause_s, 1.0)

    def test_one_that_dies_of_loading_a_model_starts_without_it_until_it_has_loaded_it(self) -> None:
        self.assertEqual(self.without(0), set())
        self.replicas.replicas[0].shared.loading = 2
        self.replicas.note_end(0)
        self.assertEqual((self.without(0), self.without(1)), ({"b"}, set()))
        self.assertEqual(self.why_not(), {"b"})
        self.load(SECOND)
        self.assertEqual(self.without(0), {"b"})
        self.start(0, FIRST)
        self.load(FIRST)
        self.replicas.try_at = 0.0
        self.assertEqual(self.tries(FIRST), FIRST)
        self.load(FIRST)
        self.replicas.note_end(1)
        self.replicas.note_end(0)
        self.assertEqual(self.without(0), set())

    def test_one_that_dies_of_all_that_it_loads_tries_each_again(self) -> None:
        for model in "bab":
            self.loads(0, model)
            self.replicas.note_end(0)
            self.assertEqual(self.without(0), {model})
            self.start(0, FIRST)
        self.load(FIRST, a=BROKEN, b=BROKEN)
        self.assertEqual(self.without(0), set())

    def test_the_only_model_is_tried_again_by_a_fresh_process(self) -> None:
        self.replicas = ReplicaRegistry(
            Plan(worker=uuid4(), devices=("cpu",), replicas=1, threads=1), {"a": CATALOG["a"]}
        )
        self.start(0, FIRST)
        self.load(FIRST)
        self.replicas.note_end(0)
        for _ in range(2):
            self.start(0, FIRST)
            self.replicas.replicas[0].shared.loading = 1
            self.replicas.note_end(0)
            self.assertEqual((self.without(0), self.why_not()), (set(), {"a"}))
            self.assertFalse(self.replicas.may_start(0))

    def test_what_a_child_says_that_it_loads_is_read_there(self) -> None:
        shared = SharedState()
        self.replicas.note_start(0, FIRST, self.replicas.make_first_assignment(0), shared)
        shared.loading = 2
        self.replicas.note_end(0)
        self.assertEqual(self.without(0), {"b"})

    def test_one_that_dies_of_a_try_starts_without_that_model_and_the_pauses_grow(self) -> None:
        pauses = []
        self.replicas.note_end(1)
        for _ in range(4):
            self.load(FIRST, b=BROKEN)
            self.replicas.try_at = 0.0
            self.assertEqual(self.tries(FIRST), FIRST)
            pauses.append(self.replicas.tries.pause_s)
            self.loads(0, "b")
            self.replicas.note_end(0)
            self.assertEqual((self.replicas.served_models, self.without(0)), ({"a"}, {"b"}))
            self.assertTrue(self.replicas.may_start(0))
            self.start(0, FIRST)
        self.assertEqual(pauses, sorted(pauses))
        self.assertLess(pauses[0], pauses[1])

    def test_a_reason_is_logged_once(self) -> None:
        self.load(FIRST, b=BROKEN)
        self.assertEqual([line for line in self.logged if BROKEN in line], self.logged)
        self.assertEqual(len(self.logged), 1)
        self.load(SECOND, b=BROKEN)
        self.load(FIRST, b=BROKEN)
        self.assertEqual(self.logged, [])


class ChangeTests(TestCase):
    """The catalog changes while two replicas run what it said before."""

    def setUp(self) -> None:
        stop_clock(self)
        plan = Plan(worker=uuid4(), devices=("cpu",), replicas=2, threads=1)
        self.replicas = ReplicaRegistry(plan, CATALOG)
        for index, pid in enumerate((FIRST, SECOND)):
            self.replicas.note_start(index, pid, self.replicas.make_first_assignment(index))
            self.load(pid, self.replicas.make_first_assignment(index))
        self.new = replace(CATALOG["a"], revision="2")

    def load(self, pid: int, assignment: Assignment, **models: str) -> None:
        """The child says that it has what it was assigned, but the new `a` in the state that `models` says."""
        states = {spec.digest: models.get(spec.name, READY) if spec.revision else READY for spec in assignment}
        self.replicas.note_loaded_models(LoadReport(pid=pid, models=states))

    def follow(self, *specs: ModelSpec) -> None:
        self.replicas.set_catalog({spec.name: spec for spec in specs})

    def next_assignment(self, *pids: int) -> tuple[int, list[tuple[str, str]]] | None:
        """The child that is to load or unload something, and what it is to have."""
        following = self.replicas.begin_next_assignment(pids or (FIRST, SECOND))
        if following is None:
            return None
        self.last = following
        return following[0], [(spec.name, spec.revision) for spec in following[1]]

    def runs(self) -> dict[str, str]:
        return {
            name: spec.revision for name, spec in self.replicas.specs.items() if name in self.replicas.unpaused_models
        }

    def states(self) -> list[tuple[str, str, str]]:
        return [
            (e.name, e.revision, e.state) for e in row_values.make_catalog_value(self.replicas, LazyStatus()).models
        ]

    @property
    def able(self) -> int:
        return self.replicas.able_child_count

    def test_a_new_revision_is_loaded_beside_the_old_by_one_after_the_other_then_switched_and_the_old_dropped(
        self,
    ) -> None:
        self.follow(self.new, CATALOG["b"])
        beside, alone = [("a", ""), ("b", ""), ("a", "2")], [("a", "2"), ("b", "")]
        self.assertEqual(self.next_assignment(), (FIRST, beside))
        self.load(*self.last)
        self.assertEqual((self.runs(), self.able), ({"a": "", "b": ""}, 2))
        self.assertIn(("a", "2", "loading"), self.states())
        self.assertEqual(self.next_assignment(), (SECOND, beside))
        self.load(*self.last)
        self.assertEqual((self.runs(), self.able), ({"a": "2", "b": ""}, 2))
        for pid in (FIRST, SECOND):
            next_pid, models = self.next_assignment() or (0, [])
            self.assertEqual((next_pid, sorted(models)), (pid, alone))
            self.load(*self.last)
        self.assertIsNone(self.next_assignment())
        self.assertEqual(sorted(self.states()), [("a", "2", "ready"), ("b", "", "ready")])

    def test_one_that_cannot_be_loaded_leaves_the_old_and_says_why(self) -> None:
        self.follow(self.new, CATALOG["b"])
        self.next_assignment()
        with self.assertLogs("inference.worker.replicas.registry", "ERROR"):
            self.load(*self.last, a=BROKEN)
        self.assertIsNone(self.next_assignment())  # nor does the other try at once
        self.assertEqual((self.runs(), self.able), ({"a": "", "b": ""}, 2))
        self.assertEqual(row_values.find_load_failures(self.replicas), {"a": row_values.OLD_GOES_ON + BROKEN})
        self.assertEqual(self.states(), [("a", "", "ready"), ("b", "", "ready"), ("a", "2", "failed")])
        self.replicas.try_at = 0.0
        self.assertEqual((self.next_assignment() or (0,))[0], SECOND)
        self.load(*self.last)
        self.assertEqual(self.runs()["a"], "")
        self.replicas.try_at = 0.0
        self.assertEqual((self.next_assignment() or (0,))[0], FIRST)
        self.load(*self.last)
        self.assertEqual((self.runs()["a"], row_values.find_load_failures(self.replicas)), ("2", {}))

    def test_the_old_one_goes_on_where_the_child_that_lacks_the_new_one_ends(self) -> None:
        self.follow(self.new, CATALOG["b"])
        self.next_assignment()
        with self.assertLogs("inference.worker.replicas.registry", "ERROR"):
            self.load(*self.last, a=BROKEN)
        self.replicas.try_at = 0.0
        self.next_assignment()
        self.load(*self.last)
        self.replicas.note_end(0)
        self.assertEqual(self.runs()["a"], "")
        first = self.replicas.make_first_assignment(0)
        self.replicas.note_start(0, FIRST, first)
        with self.assertLogs("inference.worker.replicas.registry", "ERROR"):
            self.load(FIRST, first, a="no weights, said in other words")
        self.assertEqual((self.runs()["a"], self.replicas.find_models_child_lacks(FIRST)), ("", set()))

    def test_a_process_that_dies_of_the_new_one_as_it_starts_again_leaves_the_old(self) -> None:
        self.follow(self.new, CATALOG["b"])
        for index, pid in enumerate((FIRST, SECOND)):
            self.replicas.note_end(index)
            assignment = self.replicas.make_first_assignment(index)
            self.replicas.note_start(index, pid, assignment)
            self.replicas.replicas[index].shared.loading = 1 + assignment.index(self.new)
        for index, pid in enumerate((FIRST, SECOND)):
            self.replicas.note_end(index)
            self.assertTrue(self.replicas.may_start(index))
            assignment = self.replicas.make_first_assignment(index)
            self.assertEqual({(spec.name, spec.revision) for spec in assignment}, {("a", ""), ("b", "")})
            self.replicas.note_start(index, pid, assignment)
            self.load(pid, assignment)
        self.assertEqual(self.runs(), {"a": "", "b": ""})

    def test_the_old_entry_again_ends_the_tries(self) -> None:
        self.follow(self.new, CATALOG["b"])
        self.next_assignment()
        with self.assertLogs("inference.worker.replicas.registry", "ERROR"):
            self.load(*self.last, a=BROKEN)
        self.follow(*CATALOG.values())
        self.replicas.try_at = 0.0
        self.assertIsNone(self.next_assignment())
        self.assertEqual(row_values.find_load_failures(self.replicas), {})

    def test_a_replica_pauses_for_a_load_only_while_another_takes_the_calls(self) -> None:
        self.replicas.note_end(1)
        self.follow(self.new, CATALOG["b"])
        self.assertIsNone(self.next_assignment(FIRST))  # the other one has not been started again yet
        self.replicas.note_start(1, SECOND, tuple(CATALOG.values()))
        self.assertIsNone(self.next_assignment())
        self.replicas.note_loaded_models(
            LoadReport(pid=SECOND, models={spec.digest: READY for spec in CATALOG.values()})
        )
        self.assertEqual((self.next_assignment() or (0,))[0], FIRST)

    def test_a_child_that_starts_meanwhile_has_both_and_one_that_started_before_needs_no_restart(
        self,
    ) -> None:
        self.follow(self.new, CATALOG["b"])
        self.replicas.note_end(1)
        first = self.replicas.make_first_assignment(1)
        self.assertEqual([(spec.name, spec.revision) for spec in first], [("a", ""), ("b", ""), ("a", "2")])
        self.replicas.note_start(1, SECOND, tuple(CATALOG.values()))
        self.replicas.note_end(0)
        self.replicas.note_start(0, FIRST, first)
        self.load(FIRST, first)
        self.assertEqual(self.runs()["a"], "")  # which the other had, and loads again
        self.replicas.note_loaded_models(
            LoadReport(pid=SECOND, models={spec.digest: READY for spec in CATALOG.values()})
        )
        self.replicas.replicas[1].retry_at = 0.0
        self.assertEqual((self.able, self.replicas.find_children_to_restart()), (2, []))
        pids = []
        while following := self.next_assignment():
            pids.append(following[0])
            self.load(*self.last)
        self.assertEqual((pids, self.able, self.runs()["a"]), ([SECOND, FIRST, SECOND], 2, "2"))

    def test_a_load_that_was_ended_for_its_length_says_which_setting_allows_more(self) -> None:
        self.follow(self.new, CATALOG["b"])
        self.next_assignment()
        self.replicas.replicas[0].shared.loading = 3
        self.replicas.replicas[0].assigned_at -= settings.LOAD_LIMIT_S
        self.replicas.note_end(0)
        self.replicas.note_start(0, FIRST, self.replicas.make_first_assignment(0))
        with self.assertLogs("inference.worker.replicas.registry", "ERROR"):
            self.load(FIRST, self.replicas.make_first_assignment(0))
        self.assertRegex(
            row_values.find_load_failures(self.replicas)["a"],
            "not loaded within 3600 s.*set LOAD_LIMIT_S higher",
        )

    def test_a_child_that_dies_of_the_new_one_starts_without_it(self) -> None:
        self.follow(self.new, CATALOG["b"])
        self.next_assignment()
        self.replicas.replicas[0].shared.loading = 3
        self.replicas.note_end(0)
        self.assertEqual(self.runs(), {"a": "", "b": ""})
        self.assertNotIn(self.new, self.replicas.make_first_assignment(0))
        self.replicas.note_start(0, FIRST, self.replicas.make_first_assignment(0))
        with self.assertLogs("inference.worker.replicas.registry", "ERROR"):
            self.load(FIRST, self.replicas.make_first_assignment(0))
        self.assertEqual(
            (self.able, row_values.find_load_failures(self.replicas)),
            (2, {"a": row_values.OLD_GOES_ON + ENDED_BY_IT}),
        )
        self.assertIsNone(self.next_assignment())

    def test_an_added_model_is_served_once_one_has_it(self) -> None:
        added = ModelSpec(name="c", engine="x:Y")
        self.follow(*CATALOG.values(), added)
        self.next_assignment()
        self.load(*self.last)
        self.assertEqual((set(self.runs()), self.able), ({"a", "b", "c"}, 2))
        self.next_assignment()
        self.load(*self.last)
        self.assertEqual((set(self.runs()), self.able), ({"a", "b", "c"}, 2))

    def test_a_removed_model_is_run_until_it_is_released(self) -> None:
        self.follow(CATALOG["b"])
        self.assertEqual(
            (set(self.runs()), self.replicas.removed_models, self.next_assignment()), ({"a", "b"}, {"a"}, None)
        )
        self.assertEqual(sorted(self.states()), [("a", "", "draining"), ("b", "", "ready")])
        with self.assertNoLogs("inference.worker.replicas.registry", "ERROR"):
            self.replicas.drop_removed_model("a")
        self.assertEqual((set(self.runs()), self.replicas.removed_models), ({"b"}, set()))
        self.assertEqual(self.next_assignment(), (FIRST, [("b", "")]))

    def test_what_no_replica_could_load_is_replaced_at_once(self) -> None:
        for pid in (FIRST, SECOND):
            with self.assertLogs("inference.worker.replicas.registry"):
                self.replicas.note_loaded_models(
                    LoadReport(pid=pid, models={CATALOG["a"].digest: BROKEN, CATALOG["b"].digest: READY})
                )
        self.follow(self.new, CATALOG["b"])
        self.assertEqual(self.replicas.specs["a"], self.new)
        self.assertIn(self.next_assignment(), [(pid, [("a", "2"), ("b", "")]) for pid in (FIRST, SECOND)])

    def test_a_file_that_changes_while_the_only_child_starts_is_taken_over_once_the_new_is_loaded(self) -> None:
        plan = Plan(worker=uuid4(), devices=("cpu",), replicas=1, threads=1)
        self.replicas = ReplicaRegistry(plan, CATALOG)
        self.replicas.note_start(0, FIRST, assignment := self.replicas.make_first_assignment(0))
        self.load(FIRST, assignment)
        self.replicas.note_end(0)
        self.replicas.note_start(0, FIRST, assignment)
        self.follow(self.new, CATALOG["b"])
        self.load(FIRST, assignment)
        self.assertEqual(self.runs(), {"a": "", "b": ""})
        self.assertEqual(self.next_assignment(), (FIRST, [("a", ""), ("b", ""), ("a", "2")]))

    def test_what_is_to_be_in_no_memory_is_not_run_and_unloaded_and_keeps_its_entry(self) -> None:
        self.replicas.set_unneeded_models({"a"})
        self.assertEqual((set(self.runs()), set(self.replicas.specs)), ({"b"}, {"a", "b"}))
        self.assertNotIn(("a", "", "ready"), self.states())
        self.assertEqual(self.next_assignment(), (FIRST, [("b", "")]))
        self.load(*self.last)
        self.assertEqual(self.next_assignment(), (SECOND, [("b", "")]))
        self.load(*self.last)
        self.replicas.set_unneeded_models(())
        self.assertEqual(set(self.runs()), {"b"})
        self.assertEqual(self.next_assignment(), (FIRST, [("a", ""), ("b", "")]))
