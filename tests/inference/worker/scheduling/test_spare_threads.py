"""A call beside which nothing runs or waits gets the threads of an idle replica too, while it is faster with them."""

from typing import cast
from unittest.mock import patch
from uuid import uuid4

from inference.models import Priority
from inference.worker.dispatch import Dispatcher
from inference.worker.processes.pool import ReplicaPool
from inference.worker.replicas.devices import Plan
from inference.worker.replicas.registry import ReplicaRegistry
from inference.worker.scheduling import spare_threads
from inference.worker.scheduling.backlog import LEARNT
from inference.worker.scheduling.spare_threads import LONGEST_PAUSE_S, OWN_EVERY
from inference.worker.scheduling.unfetched_jobs import UnfetchedJobs
from tests.inference.worker.test_dispatch import CATALOG, PID, DispatcherCase, Pool

OWN_S, FASTER_S, SLOWER_S = 0.001, 0.0006, 0.0012
KNOWN = 2 * LEARNT  # calls: after the first half a call's cost is known, after the others its time with own threads


class SpareThreadsTests(DispatcherCase):
    def setUp(self) -> None:
        super().setUp()
        self.start()
        self.moment = 1000.0
        time = self.enterContext(patch.object(spare_threads, "time"))
        time.monotonic = lambda: self.moment

    def start(self, *, device: str = "cpu", replicas: int = 2, threads: int = 3) -> None:
        self.pool = Pool(replicas=replicas)
        plan = Plan(worker=uuid4(), devices=(device,), replicas=replicas, threads=threads)
        self.replicas = ReplicaRegistry(plan, CATALOG)
        self.dispatcher = Dispatcher(self.replicas, lambda: cast("ReplicaPool", self.pool), UnfetchedJobs(uuid4()))
        self.pool.replicas = 0
        self.grow(replicas)

    def begin(self) -> int:
        """Begin a call with one job, and return the threads that it is given."""
        self.add()
        self.dispatcher.kick()
        threads: int = self.last.batch.threads
        return threads

    def run_calls(self, count: int, *, more_s: float = FASTER_S) -> list[int]:
        """Run one call after the other, and return the threads of each."""
        threads = []
        for _ in range(count):
            threads.append(self.begin())
            self.pool.finish(self.last, engine_s=more_s if threads[-1] else OWN_S)
        return threads

    def test_once_the_time_without_them_is_known(self) -> None:
        self.assertEqual(self.run_calls(KNOWN), [0] * KNOWN)
        self.assertEqual(self.run_calls(2), [6, 6])

    def test_one_call_of_many_has_only_its_own_so_that_their_time_stays_known(self) -> None:
        self.run_calls(KNOWN)
        self.assertEqual(self.run_calls(3 * OWN_EVERY).count(0), 3)

    def test_none_for_a_growing_while_where_they_make_calls_slower(self) -> None:
        self.run_calls(KNOWN)
        tried, pauses = [], []
        for _ in range(3):
            tried.append(sum(map(bool, self.run_calls(OWN_EVERY, more_s=SLOWER_S))))
            self.assertEqual(self.run_calls(OWN_EVERY, more_s=SLOWER_S), [0] * OWN_EVERY)
            began = self.moment
            while not self.begin():
                self.pool.finish(self.last, engine_s=OWN_S)
                self.moment += 0.1
            pauses.append(self.moment - began)
            self.pool.finish(self.last, engine_s=SLOWER_S)
        self.assertTrue(all(0 < count < OWN_EVERY // 2 for count in tried), tried)
        self.assertEqual(pauses, sorted(pauses))
        self.assertLess(pauses[0] * 2, pauses[2])

    def test_one_call_that_was_disturbed_decides_nothing(self) -> None:
        self.run_calls(KNOWN + OWN_EVERY)
        self.begin()
        self.pool.finish(self.last, engine_s=100 * OWN_S)
        self.assertIn(6, self.run_calls(2))

    def test_a_machine_that_is_idle_again_is_found_so(self) -> None:
        self.run_calls(KNOWN)
        self.run_calls(5 * OWN_EVERY, more_s=SLOWER_S)
        self.moment += 2 * LONGEST_PAUSE_S
        self.assertEqual(self.run_calls(OWN_EVERY).count(6), OWN_EVERY - 1)

    def test_costs_are_learnt_from_calls_without_them(self) -> None:
        self.run_calls(KNOWN)
        with patch.object(self.dispatcher.backlog.queues["a"], "ran") as ran:
            threads = self.run_calls(OWN_EVERY)
        self.assertEqual(ran.call_count, threads.count(0))

    def test_none_beside_another_call_or_while_jobs_wait(self) -> None:
        self.run_calls(KNOWN)
        self.begin()
        self.assertEqual(self.begin(), 0)
        first, second = self.pool.calls[-2:]
        for _ in range(2 * CATALOG["a"].max_batch_size):
            self.add()
        self.pool.finish(first)
        self.assertEqual(self.last.batch.threads, 0)
        self.pool.finish(second)
        self.assertEqual(self.last.batch.threads, 0)

    def test_none_for_the_first_of_many_batches_or_for_several_in_one_call(self) -> None:
        self.run_calls(KNOWN)
        self.pool.dead = [PID + 1]
        self.enterContext(patch.object(type(self.replicas), "able", 1))  # all jobs are this replica's share
        for priority, calls in ((Priority.NORMAL, 1), (Priority.LOW, 2)):
            for _ in range(2 * CATALOG["a"].max_batch_size):
                self.add(priority=priority)
            self.dispatcher.kick()
            self.assertEqual((max(1, len(self.last.batch.shares)), self.last.batch.threads), (calls, 0))
            while len(self.dispatcher.backlog):
                self.pool.finish(self.last)
            self.pool.finish(self.last)

    def test_none_where_there_is_no_idle_replica_or_a_gpu_computes(self) -> None:
        for place in ({"replicas": 1}, {"device": "cuda:0"}):
            self.start(**place)
            self.assertEqual(set(self.run_calls(KNOWN + OWN_EVERY)), {0}, place)

    def test_each_model_has_its_own_times(self) -> None:
        self.run_calls(KNOWN)
        self.add("b")
        self.dispatcher.kick()
        self.assertEqual(self.last.batch.threads, 0)

    def test_calls_of_steps_are_compared_by_the_time_of_a_step(self) -> None:
        for tokens, engine_s in ((10, 0.2),) * LEARNT:
            self.assertEqual(self.begin(), 0)
            self.pool.finish(self.last, engine_s=engine_s, tokens=tokens, capacity=1000, calls=0)
        self.assertEqual(self.begin(), 6)
        self.pool.finish(self.last, engine_s=0.8, tokens=80, capacity=1000, calls=0)
        self.assertEqual(self.begin(), 6)
