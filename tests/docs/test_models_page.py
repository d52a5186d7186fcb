"""Every example of docs/guide/models.md, as it stands there."""

import doctest
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from django.conf import settings
from django.test import SimpleTestCase, override_settings

from inference.catalog import reader
from inference.engines.artifacts import weights
from inference.engines.inputs.feeds import FEEDS
from tests import tiny_models
from tests.conditions import PATIENCE_S

PAGE = (settings.BASE_DIR / "docs" / "guide" / "models.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


class ModelsPageTests(SimpleTestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        (self.folder / "models.toml").write_text("\n".join(blocks("toml")))
        for code in blocks("python"):
            file = self.folder / code.partition("\n")[0].removeprefix("# ")
            file.parent.mkdir(exist_ok=True)
            file.write_text(code)
        for change in (
            override_settings(MODELS_FILE=self.folder / "models.toml"),
            patch.object(sys, "path", [str(self.folder), *sys.path]),
        ):
            change.__enter__()
            self.addCleanup(change.__exit__, None, None, None)

    def test_the_examples_give_the_answers_that_the_page_shows(self) -> None:
        tiny_models.build("text-classification", self.folder / "training" / "checkpoint-500")
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "save_reviews.py"]
        subprocess.run(command, cwd=self.folder, env=environment, check=True, timeout=PATIENCE_S)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        for session in blocks("pycon"):
            test = doctest.DocTestParser().get_doctest(session, {}, "models.md", None, None)
            self.assertEqual(runner.run(test, out=sys.stderr.write).failed, 0)
        self.assertGreater(runner.tries, 5)

    def test_the_catalogs_are_valid_and_the_hub_model_is_pinned(self) -> None:
        models = reader.load_catalog(settings.MODELS_FILE)
        self.assertEqual(set(models), {"sentiment", "reviews", "vectors", "topics", "shout"})
        self.assertIsNone(weights.find_local_folder(models["sentiment"]))
        self.assertTrue(models["sentiment"].revision)

    def test_the_table_of_tasks_is_complete(self) -> None:
        table = PAGE.partition("## The tasks")[2].partition("\n## ")[0]
        rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
        self.assertEqual(set(re.findall(r"`([\w-]+)`", "".join(rows))), set(FEEDS))
