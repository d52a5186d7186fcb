"""Which models of the file a worker runs, and until when those that are gone from it."""

import tempfile
from pathlib import Path
from unittest.mock import Mock, patch
from uuid import uuid4

from django.test import TestCase

from inference.catalog import lookup, reader, specs
from inference.fields.worker_documents import CatalogSnapshot
from inference.models import Job, Status
from inference.worker.calls import READY, LoadReport
from inference.worker.maintenance import row_values
from inference.worker.replicas import served_models
from inference.worker.replicas.devices import Plan
from inference.worker.replicas.registry import ReplicaRegistry
from inference.worker.replicas.served_models import ModelSelection, ServedModels
from inference.worker.scheduling.residency_controller import LazyStatus

ONE, TWO, THREE = (f'[{name}]\nengine = "x:Y"\n' for name in ("one", "two", "three"))
PID = 7


class ServedModelsTests(TestCase):
    def setUp(self) -> None:
        self.now_s = 1000.0
        self.enterContext(patch.object(served_models, "time", Mock(monotonic=lambda: self.now_s)))
        self.path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "models.toml"
        self.path.write_text(ONE + TWO)
        self.enterContext(self.settings(MODELS_FILE=self.path))
        self.replicas = ReplicaRegistry(
            Plan(worker=uuid4(), devices=("cpu",), replicas=1, threads=1), lookup.get_catalog()
        )
        self.replicas.note_start(0, PID, self.replicas.make_first_assignment(0))
        self.replicas.note_loaded_models(LoadReport(pid=PID, models=dict.fromkeys(self.replicas.goal, READY)))
        self.served = ServedModels(self.replicas, ModelSelection(frozenset({"one", "two"})))
        self.idle = True

    def write(self, text: str) -> None:
        self.now_s += 1
        self.path.write_text(text)
        catalog = reader.load_catalog(self.path)
        self.enterContext(patch.object(lookup, "get_catalog", lambda: catalog))
        self.follow()

    def follow(self) -> None:
        self.served.follow_models_file(lambda model: self.idle)

    def find_jobless(self) -> None:
        """A while later."""
        self.now_s += served_models.LINGER_S + 1
        self.served.update_jobless_models()

    def test_the_file_is_followed_for_the_requested_models(self) -> None:
        self.write(ONE + TWO.replace('"x:Y"', '"x:Z"') + THREE)
        self.assertEqual(list(self.replicas.catalog), ["one", "two"])
        self.assertEqual(self.replicas.catalog["two"].engine, "x:Z")

    def test_a_model_that_is_gone_is_run_while_it_has_jobs(self) -> None:
        job = Job.objects.create(model="two", inputs="text")
        self.write(ONE)
        self.find_jobless()
        self.follow()
        self.assertEqual(self.replicas.unpaused_models, {"one", "two"})
        Job.objects.filter(pk=job.pk).update(status=Status.SUCCEEDED)
        self.find_jobless()
        self.idle = False
        self.follow()
        self.assertEqual(self.replicas.unpaused_models, {"one", "two"})
        self.idle = True
        self.follow()
        self.assertEqual(self.replicas.unpaused_models, {"one"})

    def test_it_is_kept_for_as_long_as_a_web_process_may_take_jobs_of_it(self) -> None:
        self.write(ONE)
        self.served.update_jobless_models()
        self.follow()
        self.assertEqual(self.replicas.unpaused_models, {"one", "two"})

    def test_one_that_came_back_and_goes_again_is_run_for_its_new_jobs(self) -> None:
        self.write(ONE)
        self.find_jobless()
        self.write(ONE + TWO)
        Job.objects.create(model="two", inputs="text")
        self.write(ONE)
        self.assertEqual(self.replicas.unpaused_models, {"one", "two"})

    def test_what_the_row_says_is_of_the_file_that_is_followed(self) -> None:
        before, after = reader.load_catalog(self.path), reader.parse_catalog(ONE)
        with patch.object(lookup, "get_catalog", lambda: after):
            self.assertEqual(self.row().digest, specs.digest_catalog(before))
            self.follow()
            self.assertEqual(self.row().digest, specs.digest_catalog(after))

    def row(self) -> CatalogSnapshot:
        return row_values.make_catalog_value(self.replicas, LazyStatus())

    def test_one_that_is_there_again_stays(self) -> None:
        self.write(ONE)
        self.write(ONE + TWO)
        self.find_jobless()
        self.follow()
        self.assertEqual((self.replicas.unpaused_models, self.replicas.removed_models), ({"one", "two"}, set()))
