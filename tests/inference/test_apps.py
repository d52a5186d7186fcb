"""Another project that has "inference" in its INSTALLED_APPS is told what to do instead."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from django.conf import settings

SCRIPT = """
import sys

OURS = {"celery", "dj_database_url", "orjson", "redis", "rest_framework", "torch", "uuid_utils"}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OURS:
            raise ModuleNotFoundError(f"another project has no {name}", name=name)

sys.meta_path.insert(0, Blocker())
import django
from django.conf import settings

settings.configure(SECRET_KEY="theirs", INSTALLED_APPS=["django.contrib.contenttypes", "inference"])
django.setup()
"""


class AnotherProjectTests(unittest.TestCase):
    def test_its_start_ends_with_a_sentence_that_says_what_to_do(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "inference").symlink_to(settings.BASE_DIR / "inference")
            run = subprocess.run(
                [sys.executable, "-c", SCRIPT], cwd=folder, capture_output=True, text=True, check=False
            )
        self.assertEqual(run.returncode, 1)
        last = run.stderr.splitlines()[-1]
        self.assertTrue(last.startswith("django.core.exceptions.ImproperlyConfigured"), last)
        self.assertIn("Take it out of INSTALLED_APPS", last)
        self.assertIn("pip install FOLDER/batch_inference_client", last)
        readme = (settings.BASE_DIR / "README.md").read_text()
        self.assertIn("\n## From your Django project\n", readme)
