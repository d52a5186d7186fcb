"""What the replicas of a worker have loaded decides what it serves; real processes: tests/e2e/test_replicas.py."""

import ctypes
import logging
import time
from unittest import TestCase
from uuid import uuid4

from inference.catalog.specs import ModelSpec
from inference.worker.calls import READY, Loaded
from inference.worker.devices import Plan
from inference.worker.replicas import LONGEST_PAUSE_S, Replicas

BROKEN = "no weights"
CATALOG = {name: ModelSpec(name=name, engine="x:Y") for name in ("a", "b")}
FIRST, SECOND = 11, 22  # process ids


class ReplicasTests(TestCase):
    def setUp(self) -> None:
        plan = Plan(worker=uuid4(), devices=("cuda:0", "cuda:1"), replicas=2, threads=1, models=CATALOG)
        self.replicas = Replicas(plan)
        self.replicas.started(0, FIRST)
        self.replicas.started(1, SECOND)

    def load(self, pid: int, **models: str) -> None:
        with self.assertLogs("inference.worker.replicas") as logs:
            logging.getLogger("inference.worker.replicas").info("so that there is one")
            self.replicas.loaded(Loaded(pid=pid, models={"a": READY, "b": READY, **models}))
        self.logged = [record.getMessage() for record in logs.records if record.levelno == logging.ERROR]

    def able(self) -> list[int]:
        return [pid for pid in (FIRST, SECOND) if self.replicas.may_run(pid)]

    def test_nothing_is_served_before_a_replica_has_loaded_it(self) -> None:
        self.assertEqual((self.replicas.serving, self.replicas.served, self.able()), (set(), set(), []))
        self.load(FIRST)
        self.assertEqual((self.replicas.serving, self.able(), self.replicas.have_told), ({"a", "b"}, [FIRST], False))

    def test_one_that_lacks_what_another_runs_is_given_nothing_and_restarted(self) -> None:
        self.load(FIRST)
        self.load(SECOND, b=BROKEN)
        self.assertEqual((self.able(), self.replicas.to_restart()), ([FIRST], []))
        self.replicas.replicas[1].retry_at = 0.0
        self.assertEqual(self.replicas.to_restart(), [1])

    def test_what_all_lack_is_not_served_and_tried_again_beside_the_work(self) -> None:
        self.load(FIRST, b=BROKEN)
        self.load(SECOND, b=BROKEN)
        self.assertEqual((self.replicas.serving, self.able()), ({"a"}, [FIRST, SECOND]))
        self.assertFalse(self.replicas.should_try())
        self.replicas.try_at = 0.0
        self.assertTrue(self.replicas.should_try())
        self.load(SECOND)
        self.assertEqual((self.replicas.serving, self.able()), ({"a", "b"}, [SECOND]))

    def eight(self) -> None:
        """Replicas that serve a; none could load b."""
        plan = Plan(worker=uuid4(), devices=("cuda:0",), replicas=8, threads=1, models=CATALOG)
        self.replicas = Replicas(plan)
        for index in range(8):
            self.replicas.started(index, index)
        for index in range(8):
            self.load(index, b=BROKEN)
            self.replicas.replicas[index].retry_at = 0.0

    def test_what_one_of_many_can_load_is_served_once_half_of_them_have_it(self) -> None:
        self.eight()
        for index in range(3):
            self.load(index)
            self.assertEqual(
                (self.replicas.serving, self.replicas.served, self.replicas.to_restart()), ({"a"}, {"a"}, [])
            )
            self.assertTrue(self.replicas.should_try())  # at once: the last try has succeeded
            self.replicas.tried()
        self.replicas.ended(0)
        self.assertEqual(self.replicas.served, {"a"})
        self.replicas.started(0, 0)
        self.load(0)
        self.load(3)
        self.assertEqual((self.replicas.serving, self.replicas.to_restart()), ({"a", "b"}, [4, 5, 6, 7]))

    def test_they_try_in_turn(self) -> None:
        self.eight()
        self.load(0)
        tried = []
        for _ in range(7):
            index = self.replicas.next_to_try(range(8))
            assert index is not None
            tried.append(index)
            self.load(index, b=BROKEN)
        self.assertEqual(sorted(tried), list(range(1, 8)))
        self.assertIsNone(self.replicas.next_to_try([0]))

    def test_what_is_served_stays_so_while_one_has_it(self) -> None:
        self.eight()
        for index in range(4):
            self.load(index)
        for index in range(3):
            self.replicas.ended(index)
        self.assertEqual(self.replicas.serving, {"a", "b"})
        self.replicas.ended(3)
        self.assertEqual(self.replicas.serving, {"a"})

    def test_one_that_has_what_the_others_have_not_is_not_asked_again_and_again(self) -> None:
        self.eight()
        self.load(0)
        self.replicas.tried(took_s=6.0)
        self.load(0)
        self.load(1, b="no weights, said in other words")
        self.assertFalse(self.replicas.should_try())

    def test_a_try_that_took_long_is_seldom_made(self) -> None:
        self.load(FIRST, b=BROKEN)
        self.replicas.tried(took_s=1000.0)
        self.assertGreater(self.replicas.try_at, time.monotonic() + 9000)

    def test_one_that_has_nothing_is_restarted(self) -> None:
        self.load(FIRST, a=BROKEN, b=BROKEN)
        self.replicas.replicas[0].retry_at = 0.0
        self.assertEqual((self.able(), self.replicas.to_restart()), ([], [0]))

    def test_one_that_ends_after_it_had_loaded_starts_at_once_and_is_waited_for(self) -> None:
        self.load(FIRST)
        self.load(SECOND)
        for index in (0, 1):
            self.replicas.ended(index)
        self.assertEqual((self.replicas.serving, self.replicas.served), (set(), {"a", "b"}))
        self.assertTrue(self.replicas.may_start(0))
        self.replicas.started(0, FIRST)
        self.load(FIRST, b=BROKEN)
        self.replicas.started(1, SECOND)
        self.replicas.ended(1)
        self.assertEqual((self.replicas.serving, self.replicas.served), ({"a"}, {"a"}))

    def test_one_that_dies_while_it_loads_waits_longer_each_time(self) -> None:
        pauses = []
        for _ in range(9):
            self.replicas.ended(0)
            self.assertFalse(self.replicas.may_start(0))
            pauses.append(self.replicas.replicas[0].pauses.pause_s)
            self.replicas.started(0, FIRST)
        self.assertEqual(pauses[:3], [2.0, 4.0, 8.0])
        self.assertEqual(pauses[-1], LONGEST_PAUSE_S)
        self.load(FIRST)
        self.assertEqual(self.replicas.replicas[0].pauses.pause_s, 1.0)

    def test_one_that_dies_of_loading_a_model_starts_without_it_unless_another_runs_it(self) -> None:
        self.assertEqual(self.replicas.without(0), set())
        self.replicas.replicas[0].loading.value = 2
        self.replicas.ended(0)
        self.assertEqual((self.replicas.without(0), self.replicas.without(1)), ({"b"}, set()))
        self.assertEqual(set(self.replicas.why_not()), {"b"})
        self.load(SECOND)
        self.assertEqual(self.replicas.without(0), set())
        self.replicas.started(0, FIRST)
        self.load(FIRST)
        self.replicas.ended(1)
        self.replicas.ended(0)
        self.assertEqual(self.replicas.without(0), set())

    def test_one_that_dies_of_all_that_it_loads_tries_each_again(self) -> None:
        for number in (2, 1, 2):
            self.replicas.replicas[0].loading.value = number
            self.replicas.ended(0)
            self.assertEqual(self.replicas.without(0), {"ab"[number - 1]})
            self.replicas.started(0, FIRST)
        self.load(FIRST, a=BROKEN, b=BROKEN)
        self.assertEqual(self.replicas.without(0), set())

    def test_the_only_model_is_tried_again_by_a_fresh_process(self) -> None:
        self.replicas = Replicas(
            Plan(worker=uuid4(), devices=("cpu",), replicas=1, threads=1, models={"a": CATALOG["a"]})
        )
        self.replicas.started(0, FIRST)
        self.replicas.replicas[0].loading.value = 1
        self.replicas.ended(0)
        self.assertEqual((self.replicas.without(0), list(self.replicas.why_not())), (set(), ["a"]))

    def test_what_a_child_says_that_it_loads_is_read_there(self) -> None:
        loading = ctypes.c_int()
        self.replicas.started(0, FIRST, loading)
        loading.value = 2
        self.replicas.ended(0)
        self.assertEqual(self.replicas.without(0), {"b"})

    def test_one_that_dies_of_a_try_starts_without_that_model_and_the_pauses_grow(self) -> None:
        pauses = []
        self.replicas.ended(1)
        for _ in range(4):
            self.load(FIRST, b=BROKEN)
            self.replicas.tried()
            pauses.append(self.replicas.tries.pause_s)
            self.replicas.replicas[0].loading.value = 2
            self.replicas.ended(0)
            self.assertEqual((self.replicas.served, self.replicas.without(0)), ({"a"}, {"b"}))
            self.assertTrue(self.replicas.may_start(0))
            self.replicas.started(0, FIRST)
        self.assertEqual(pauses, sorted(pauses))
        self.assertLess(pauses[0], pauses[1])

    def test_a_reason_is_told_once(self) -> None:
        self.load(FIRST, b=BROKEN)
        self.assertEqual([line for line in self.logged if BROKEN in line], self.logged)
        self.assertEqual(len(self.logged), 1)
        self.load(SECOND, b=BROKEN)
        self.load(FIRST, b=BROKEN)
        self.assertEqual(self.logged, [])

    def test_a_pool_that_grows_has_more_of_them(self) -> None:
        self.replicas.started(2, 33)
        self.load(33)
        self.assertEqual((len(self.replicas.rows({})), self.replicas.may_run(33)), (3, True))
