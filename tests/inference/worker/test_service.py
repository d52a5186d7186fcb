"""The parts of a worker before Celery runs them, and the plan of its replicas; real workers are in tests/e2e."""

from unittest import TestCase
from uuid import uuid4

from inference.catalog import reader
from inference.catalog.lookup import get_catalog
from inference.models import WorkerState
from inference.worker import service
from inference.worker.replicas import devices
from inference.worker.replicas.devices import Plan
from inference.worker.replicas.served_models import ModelSelection
from inference.worker.service import WorkerOptions, WorkerService


class SharingTests(TestCase):
    """The models decide how many replicas share a GPU."""

    def loads(self, text: str, **sizes: int | None) -> tuple[list[int | None], int]:
        specs = reader.parse_catalog(text).values()
        return service._choose_sharing(specs, {spec.digest: sizes[spec.name] for spec in specs})  # noqa: SLF001

    def test_all_eager_models_and_the_largest_lazy_one_must_fit(self) -> None:
        eager, lazy = '[{0}]\nengine = "x:Y"\n', '[{0}]\nengine = "x:Y"\nload = "lazy"\n'
        text = "".join((eager.format("a"), eager.format("b"), lazy.format("c"), lazy.format("d")))
        self.assertEqual(self.loads(text, a=1, b=2, c=3, d=4), ([1, 2, 4], devices.MOST_REPLICAS))
        self.assertEqual(self.loads(text, a=1, b=None, c=3, d=None), ([1, None, None], devices.MOST_REPLICAS))

    def test_a_model_that_generates_has_its_gpu_for_one_replica(self) -> None:
        text = '[a]\ntask = "text-generation"\nmodel = "m"\n'
        self.assertEqual(self.loads(text, a=1), ([1], 1))


class ServiceTests(TestCase):
    def test_a_heartbeat_that_comes_before_celery_has_connected_says_that_the_worker_starts(self) -> None:
        plan = Plan(worker=uuid4(), devices=("cpu",), replicas=1, threads=1)
        options = WorkerOptions(node="w", devices="cpu", concurrency=1, most_calls=None, most_kib=None)
        made = WorkerService(plan, get_catalog(), ModelSelection(), options)
        self.addCleanup(made.pool.kill_children)
        snapshot = made.heartbeat.make_snapshot()
        self.assertEqual(
            (snapshot.state, snapshot.model_names, snapshot.connected, snapshot.replicas_ready),
            (WorkerState.STARTING, [], False, 0),
        )
