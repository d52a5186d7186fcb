"""What may be imported where: torch in pool children only, the policy pure, each layer what is below it."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from django.conf import settings

HEAVY = {"torch", "transformers", "tensorflow", "jax"}


def modules_after(statements: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter holds after `statements`."""
    code = f"import sys\n{statements}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=settings.BASE_DIR)
    return set(run.stdout.split())


class TestImports(unittest.TestCase):
    def test_the_web_process_does_not_load_torch(self) -> None:
        loaded = modules_after("import project.wsgi, project.urls")
        self.assertIn("django", loaded)
        self.assertFalse(loaded & HEAVY)

    def test_the_worker_s_main_process_does_not_load_torch(self) -> None:
        loaded = modules_after(
            "import project.wsgi, project.celery\n"
            "from inference.worker import dispatcher\n"
            "from inference.worker.celery_worker import consumer, setup, task_pool\n"
            "from inference.worker.maintenance import housekeeping\n"
            "project.celery.app.loader.import_default_modules()"
        )
        self.assertIn("celery", loaded)
        self.assertFalse(loaded & HEAVY)

    def test_programs_do_not_look_for_garbage_in_what_they_import(self) -> None:
        for program in ("project", "project.wsgi", "inference.worker.processes.preload"):
            with self.subTest(program):
                modules_after(
                    f"import gc, os; os.environ['FORKSERVER_IMPORTS'] = 'tests.echo'; import {program}\n"
                    "assert gc.isenabled() and gc.get_freeze_count() and not gc.get_stats()[2]['collections']"
                )

    def test_what_makes_the_openapi_document_is_imported_on_first_use(self) -> None:
        modules_after("import project.wsgi; assert 'drf_spectacular.generators' not in sys.modules")

    def test_who_plays_faults_loads_torch_only_for_those_of_a_model(self) -> None:
        loaded = modules_after("import django; django.setup(); import tests.faults.command")
        self.assertFalse(loaded & HEAVY)

    def test_the_batching_policy_needs_the_standard_library_and_sorted_containers_only(self) -> None:
        ours = modules_after("import inference.batching.queue")
        self.assertLessEqual(
            ours - modules_after("pass") - set(sys.stdlib_module_names), {"inference", "sortedcontainers"}
        )


class TestLayers(unittest.TestCase):
    def test_a_layer_broken_on_purpose_is_caught(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for package in ("project", "inference", "api", "tools", "batch_inference_client", "tests", "benchmarks"):
                shutil.copytree(settings.BASE_DIR / package, Path(folder, package))
            shutil.copy(settings.BASE_DIR / "pyproject.toml", folder)
            with Path(folder, "inference/store/job_rows.py").open("a") as rows:
                rows.write("import kombu\nfrom inference.worker.maintenance import heartbeat\n")
            code = "from importlinter.cli import lint_imports_command as lint; lint()"
            run = subprocess.run(
                [sys.executable, "-c", code, "--no-cache"], capture_output=True, text=True, cwd=folder, check=False
            )
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertIn("inference.store is not allowed to import inference.worker", run.stdout)
        self.assertIn("inference is not allowed to import kombu", run.stdout)
