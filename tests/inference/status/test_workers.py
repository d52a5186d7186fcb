import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest import TestCase
from unittest.mock import Mock, patch

from django.test import TestCase as DatabaseTestCase

from inference import budget
from inference.catalog.specs import ModelSpec
from inference.fields.worker_documents import ReplicaSnapshot
from inference.models import Worker, WorkerState
from inference.status import workers
from inference.status.workers import MemoryPresence, Remembered
from inference.store import connections
from inference.worker.replicas import devices, gpus
from inference.worker.replicas.gpus import Device, FoundGpus
from tests.conditions import PATIENCE_S, ago, eventually


class BesideTests(DatabaseTestCase):
    def make(self, name: str, *devices: str, **values: object) -> Worker:
        return Worker.objects.create(name=name, pid=1, state=WorkerState.READY, devices=list(devices), **values)

    def test_a_gpu_that_another_worker_of_the_host_has_is_a_conflict(self) -> None:
        own = self.make("a@host", "cpu", "cuda:0", "cuda:1+cuda:2")
        self.make("b@host", "cpu", "cuda:2")
        self.make("c@host", "cuda:0", "cuda:1", "cuda:3")
        self.make("a@host", "cuda:0")  # an earlier start of its own
        self.make("d@host", "cuda:3", "cpu")
        self.make("e@other-host", "cuda:0")
        Worker.objects.filter(pk=self.make("g@host", "cuda:0").pk).update(state=WorkerState.STOPPED)
        self.assertEqual(workers.find_gpu_conflicts(own), {"b@host": ["cuda:2"], "c@host": ["cuda:0", "cuda:1"]})

    def test_no_gpu_of_many_is_lost_or_taken_for_another(self) -> None:
        eight = tuple(Device(name=f"cuda:{number}", visible=f"GPU-{number}") for number in range(8))
        with patch.object(gpus, "find_gpus", return_value=FoundGpus(gpus=eight, why="")):
            first, second, third = (
                devices.choose_devices("+".join(f"cuda:{number}" for number in numbers)).devices[0].name
                for numbers in (range(4), range(4, 8), range(3, 7))
            )
        self.make("b@host", second)
        self.assertEqual(workers.find_gpu_conflicts(self.make("a@host", first)), {})
        self.assertEqual(workers.find_gpu_conflicts(self.make("c@host", third))["a@host"], ["cuda:3"])


class LivingTests(DatabaseTestCase):
    def test_a_worker_lives_while_its_heartbeat_is_near_the_database_s_clock(self) -> None:
        worker = Worker.objects.create(name="w", pid=1, state=WorkerState.READY)
        for age_s, lives in ((0.0, True), (2 * PATIENCE_S, False), (-2 * PATIENCE_S, False)):
            with self.subTest(age_s), self.settings(WORKER_SILENT_S=PATIENCE_S):
                Worker.objects.update(heartbeat_at=ago(age_s))
                self.assertEqual(list(workers.select_living_workers()), [worker] if lives else [])
                self.assertEqual(list(workers.select_silent_workers()), [] if lives else [worker])


class RememberedTests(TestCase):
    def setUp(self) -> None:
        self.clock = Mock(monotonic=Mock(return_value=0.0))
        self.enterContext(patch.multiple(workers, time=self.clock, PATIENCE_S=PATIENCE_S, REMEMBERED_S=1.0))

    def test_a_value_is_read_once_for_all_requests_within_a_second(self) -> None:
        reads = itertools.count(1)
        remembered = Remembered(lambda: next(reads))
        self.assertEqual([remembered(), remembered()], [1, 1])
        self.clock.monotonic.return_value = 1.0
        self.assertEqual(remembered(), 2)

    def test_a_request_during_a_read_that_fails_fails_with_it(self) -> None:
        reads: list[int] = []
        failed: list[str] = []
        gate = threading.Event()

        def read() -> None:
            reads.append(1)
            gate.wait(PATIENCE_S)
            raise OSError("away")

        remembered = Remembered(read)

        def request() -> None:
            try:
                remembered()
            except OSError as error:
                failed.append(str(error))

        threads = [threading.Thread(target=request) for _ in range(5)]
        with patch.object(connections, "release_connection") as waiting:
            for thread in threads:
                thread.start()
            eventually(lambda: waiting.call_count == 4, "the others wait")
        gate.set()
        for thread in threads:
            thread.join()
        self.assertEqual((failed, len(reads)), (["away"] * 5, 1))

    def test_a_request_with_no_time_left_fails_alone(self) -> None:
        reading, gate = threading.Event(), threading.Event()
        reads: list[int] = []

        def read() -> int:
            reads.append(1)
            if len(reads) > 1:
                return 7
            reading.set()
            gate.wait(PATIENCE_S)
            raise OSError("spent")

        remembered = Remembered(read)

        def request(spent_s: float) -> int:
            with budget.request_budget():
                waited = budget.counted_wait()
                with waited:
                    waited.began_at -= spent_s
                return remembered()

        with patch.dict(os.environ, DATABASE_ANSWER_S=f"{PATIENCE_S:g}"), ThreadPoolExecutor(5) as pool:
            spent = pool.submit(request, 2 * PATIENCE_S)
            self.assertTrue(reading.wait(PATIENCE_S))
            with patch.object(connections, "release_connection") as waiting:
                fresh = [pool.submit(request, 0) for _ in range(4)]
                eventually(lambda: waiting.call_count == 4, "the others wait")
            gate.set()
            self.assertIsInstance(spent.exception(), OSError)
            self.assertEqual(([each.result() for each in fresh], len(reads)), ([7] * 4, 2))

    def test_after_a_failure_the_next_request_reads_again(self) -> None:
        answers: Iterator[Exception | int] = iter([OSError("away"), 7])

        def read() -> int:
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        remembered = Remembered(read)
        self.assertRaises(OSError, remembered)
        self.assertEqual(remembered(), 7)


class SecondsTests(DatabaseTestCase):
    def setUp(self) -> None:
        lazy = {"a": ModelSpec(name="a", engine="x:Y", load="lazy")}
        self.enterContext(patch("inference.status.workers.lookup.get_catalog", return_value=lazy))

    def worker(self, state: str, worker_state: WorkerState = WorkerState.READY, **speeds: float) -> None:
        catalog = {"models": [{"name": "a", "state": state, "memory": 7, "load_s": 5.0}]}
        Worker.objects.create(name="w", pid=1, state=worker_state, catalog=catalog, speeds=speeds)

    def test_an_estimate_has_the_load_of_a_lazy_model_in_it_while_no_worker_has_it_in_memory(self) -> None:
        self.worker("not loaded", a=2.0)
        self.assertEqual(workers.predict_jobs_s("a", 10), 10.0)
        self.assertEqual(workers.find_memory_presence()["a"], MemoryPresence(workers=0, bytes=7, load_s=5.0))

    def test_a_worker_that_starts_has_the_models_that_it_has_loaded_so_far(self) -> None:
        self.worker("ready", WorkerState.STARTING)
        self.assertEqual(workers.find_memory_presence()["a"].workers, 1)
        Worker.objects.update(replicas={"0": ReplicaSnapshot(notes={"a": "in float16"})})
        workers.read_serving_replicas.forget()
        self.assertEqual(workers.read_model_notes(), {"a": "in float16"})

    def test_the_load_is_all_that_is_known_before_the_first(self) -> None:
        self.worker("not loaded")
        self.assertEqual(workers.predict_jobs_s("a", 10), 5.0)

    def test_what_one_worker_has_in_memory_is_not_loaded_first(self) -> None:
        self.worker("not loaded", a=1.0)
        self.worker("ready", a=1.0)
        self.assertEqual(workers.predict_jobs_s("a", 10), 5.0)

    def test_nothing_is_known_without_a_worker_or_of_one_of_an_earlier_version(self) -> None:
        self.assertIsNone(workers.predict_jobs_s("a", 10))
        Worker.objects.create(name="w", pid=1, state=WorkerState.READY, catalog=None)
        self.assertIsNone(workers.predict_jobs_s("a", 10))


class ServingTests(DatabaseTestCase):
    def test_that_there_is_no_worker_is_not_remembered(self) -> None:
        self.enterContext(patch.object(workers, "REMEMBERED_S", PATIENCE_S))
        self.assertEqual(workers.count_serving_workers("m"), 0)
        Worker.objects.create(name="w", pid=1, state=WorkerState.READY, model_names=["m"])
        self.assertEqual(workers.count_serving_workers("m"), 1)
        with self.assertNumQueries(0):
            self.assertEqual(workers.count_serving_workers("m"), 1)
