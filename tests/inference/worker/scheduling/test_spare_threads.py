"""A job alone gets the threads of an idle replica too, while its model's calls are faster with them."""

import dataclasses
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from inference.values.priority import Priority
from inference.worker.calls import READY, BatchReport, LoadReport
from inference.worker.replicas import devices
from inference.worker.replicas.devices import Plan
from inference.worker.replicas.registry import ReplicaRegistry
from inference.worker.scheduling import spare_threads
from inference.worker.scheduling.spare_threads import FIRST_PAUSE, LEARNT, LONGEST_S, OWN_EVERY, TRUSTED_AFTER
from tests.inference.worker.test_dispatcher import CATALOG, PID, DispatcherCase, Pool, make_dispatcher

OWN_S, FASTER_S, SLOWER_S = 0.001, 0.0006, 0.0012
KNOWN = 2 * LEARNT  # calls: after the first half a call's cost is known, after the others its time with own threads
THREADS = 3  # of a replica
LONGEST_PAUSE = 128


class SpareThreadsTests(DispatcherCase):
    def setUp(self) -> None:
        super().setUp()
        self.cores = self.enterContext(patch.object(devices, "count_cores", return_value=2 * THREADS))
        self.enterContext(patch.object(spare_threads, "LONGEST_PAUSE", LONGEST_PAUSE))
        self.start()

    def start(self, *, device: str = "cpu", replicas: int = 2, **options: Any) -> None:
        self.pool = Pool(replicas=replicas)
        plan = Plan(worker=uuid4(), devices=(device,), replicas=replicas, threads=THREADS, **options)
        self.replicas = ReplicaRegistry(plan, CATALOG)
        self.dispatcher = make_dispatcher(self.replicas, self.pool)
        self.pool.replicas = 0
        self.grow(replicas)

    def begin(self, **values: Any) -> int:
        """Begin a call with one job, and return the spare threads that it is given."""
        self.add(**values)
        self.dispatcher.send_next_calls()
        threads: int = self.last.batch.spare_threads
        return threads

    def run_calls(self, count: int, *, spare_s: float = FASTER_S) -> list[int]:
        """Run one call after the other, and return the spare threads of each."""
        threads = []
        for _ in range(count):
            threads.append(self.begin())
            self.pool.finish(self.last, engine_s=spare_s if threads[-1] else OWN_S)
        return threads

    def test_once_the_time_without_them_is_known(self) -> None:
        self.assertEqual(self.run_calls(KNOWN), [0] * KNOWN)
        self.assertEqual(self.run_calls(2), [THREADS] * 2)

    def test_one_call_of_many_has_none_so_that_their_time_stays_known(self) -> None:
        self.run_calls(KNOWN)
        self.assertEqual(self.run_calls(3 * OWN_EVERY).count(0), 3)

    def test_where_they_make_calls_slower_they_are_given_up_for_more_and_more_calls(self) -> None:
        self.run_calls(KNOWN)
        given = "".join("s" if threads else "." for threads in self.run_calls(8 * LONGEST_PAUSE, spare_s=SLOWER_S))
        pauses = [len(pause) for pause in given.split("s")[:-1] if len(pause) > 1]
        self.assertEqual(pauses, sorted(pauses))
        self.assertGreaterEqual((pauses[0], pauses[-1]), (FIRST_PAUSE - 1, LONGEST_PAUSE - 1))
        self.assertLess(given.count("s") / len(given), 0.2)

    def test_also_where_only_some_calls_are_slower_by_much(self) -> None:
        self.run_calls(KNOWN)
        given = 0
        for turn in range(4 * LONGEST_PAUSE):
            threads = self.begin()
            given += bool(threads)
            self.pool.finish(self.last, engine_s=8 * OWN_S if threads and turn % 5 == 0 else OWN_S)
        self.assertLess(given / (4 * LONGEST_PAUSE), 0.2)

    def test_a_machine_that_is_idle_again_is_found_so(self) -> None:
        self.run_calls(KNOWN)
        self.run_calls(LONGEST_PAUSE, spare_s=SLOWER_S)
        self.run_calls(LONGEST_PAUSE + TRUSTED_AFTER)
        self.assertEqual(self.run_calls(OWN_EVERY).count(THREADS), OWN_EVERY - 1)
        self.run_calls(OWN_EVERY, spare_s=5 * OWN_S)
        self.assertIn(THREADS, self.run_calls(FIRST_PAUSE + 2))  # the pause is short again

    def test_costs_are_learnt_from_calls_without_them(self) -> None:
        self.run_calls(KNOWN)
        with patch.object(self.dispatcher.backlog.queues["a"], "learn_call") as ran:
            threads = self.run_calls(OWN_EVERY)
        self.assertEqual(ran.call_count, threads.count(0))

    def test_a_call_with_them_that_did_not_fit_bounds_the_next_batches(self) -> None:
        self.run_calls(KNOWN)
        self.assertEqual(self.begin(), THREADS)
        self.pool.finish(self.last, oom_shape=(8, 10.0))
        self.assertEqual(self.dispatcher.backlog.queues["a"].max_tokens, 40)

    def test_none_beside_another_call_or_while_jobs_wait(self) -> None:
        self.run_calls(KNOWN)
        self.begin()
        self.assertEqual(self.begin(), 0)
        first, second = self.pool.calls[-2:]
        for _ in range(2 * CATALOG["a"].max_batch_size):
            self.add()
        self.pool.finish(first)
        self.assertEqual(self.last.batch.spare_threads, 0)
        self.pool.finish(second)
        self.assertEqual(self.last.batch.spare_threads, 0)

    def test_none_for_the_first_of_many_batches_or_for_several_jobs(self) -> None:
        self.run_calls(KNOWN)
        self.pool.dead = [PID + 1]
        for priority, jobs in ((Priority.NORMAL, 1 + CATALOG["a"].max_batch_size), (Priority.LOW, 2)):
            for _ in range(jobs):
                self.add(priority=priority)
            self.dispatcher.send_next_calls()
            self.assertEqual(self.last.batch.spare_threads, 0)
            while len(self.dispatcher.backlog):
                self.pool.finish(self.last)
            self.pool.finish(self.last)

    def test_none_where_no_replica_is_idle_or_no_core(self) -> None:
        for options in ({"replicas": 1}, {"device": "cuda:0"}, {"ahead": True}):
            self.start(**options)
            self.assertEqual(set(self.run_calls(KNOWN + OWN_EVERY)), {0}, options)
        self.start()
        self.cores.return_value = 2 * THREADS - 1
        self.assertEqual(set(self.run_calls(KNOWN + OWN_EVERY)), {0})

    def test_none_while_another_replica_starts_or_loads(self) -> None:
        self.run_calls(KNOWN)
        other = self.replicas.replicas[1]
        other.is_loading = True
        self.assertEqual(set(self.run_calls(OWN_EVERY)), {0})
        other.is_loading = False
        self.replicas.note_end(1)
        self.replicas.note_start(1, PID + 1)
        self.assertEqual(set(self.run_calls(OWN_EVERY)), {0})
        self.replicas.note_loaded_models(
            LoadReport(pid=PID + 1, models={spec.digest: READY for spec in CATALOG.values()})
        )
        self.assertIn(THREADS, self.run_calls(2))

    def test_none_for_a_call_that_takes_long(self) -> None:
        self.run_calls(KNOWN)
        self.assertEqual(self.begin(size=1000, length=int(1000 * LONGEST_S / OWN_S)), 0)

    def test_none_after_a_call_with_them_that_ended_its_process(self) -> None:
        self.run_calls(KNOWN)
        self.assertEqual(self.begin(), THREADS)
        self.pool.lose(self.last)
        self.now()
        self.dispatcher.send_next_calls()
        self.pool.finish(self.last)
        self.assertEqual(self.begin(), 0)

    def test_a_model_that_changes_is_measured_anew(self) -> None:
        self.run_calls(KNOWN)
        for name in ("b", "a"):
            if name == "a":
                changed = {**CATALOG, "a": dataclasses.replace(CATALOG["a"], revision="2")}
                self.replicas.set_catalog(changed)
                self.dispatcher.backlog.update_queues()
                for index in range(2):
                    states = {spec.digest: READY for spec in changed.values()}
                    self.replicas.note_loaded_models(LoadReport(pid=PID + index, models=states))
                self.dispatcher.backlog.update_queues()
            self.add(name)
            self.dispatcher.send_next_calls()
            self.assertEqual(self.last.batch.spare_threads, 0)
            self.pool.finish(self.last)

    def test_of_steps_those_of_one_row_that_read_no_prompt_are_compared(self) -> None:
        self.enterContext(patch.object(ReplicaRegistry, "generates_by_steps", return_value=True))
        report = BatchReport(errors={}, engine_s=0.2, tokens=10, size=1, capacity=1000)
        job_id, _ = self.add()
        self.dispatcher.send_next_calls()
        given = []
        for _ in range(LEARNT + 2):  # the first reads the prompt
            given.append(self.last.batch.spare_threads)
            self.last.over = True
            self.last.done(dataclasses.replace(report, left=frozenset({job_id})))
        self.assertEqual(given, [0] * (LEARNT + 1) + [THREADS])
