"""Weights from a hub: the real client, against a hub on the loopback."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import TestCase

from inference.catalog.specs import ModelSpec
from inference.engines import loading
from tests import tiny_models
from tests.conditions import PATIENCE_S
from tests.inference.engines.artifacts.hub import COMMIT, Hub

# In a process of its own: the client reads its environment when it is imported.
FETCH = """
import sys
import django
django.setup()
from inference.catalog.specs import ModelSpec
from inference.engines.artifacts import weights
from inference.errors import ModelUnavailable
spec = ModelSpec(name="m", task="text-classification", model=sys.argv[1], revision=sys.argv[2])
try:
    print(weights.fetch_folder(spec))
except ModelUnavailable as error:
    print(error.message)
"""


class HubTests(TestCase):
    files: dict[str, bytes]

    @classmethod
    def setUpClass(cls) -> None:
        with tempfile.TemporaryDirectory() as folder:
            model = tiny_models.build("text-classification", Path(folder))
            cls.files = {file.name: file.read_bytes() for file in model.iterdir()}

    def setUp(self) -> None:
        cache = tempfile.TemporaryDirectory()
        self.addCleanup(cache.cleanup)
        self.cache = cache.name

    def fetch(self, url: str, model: str = "org/tiny", revision: str = COMMIT[:7], *, offline: bool = False) -> str:
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "HF_ENDPOINT": url,
            "HF_HOME": self.cache,
            "HF_HUB_OFFLINE": str(int(offline)),
            "HF_HUB_DISABLE_XET": "1",
            **dict.fromkeys(("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"), f"{PATIENCE_S:.0f}"),
        }
        command = [sys.executable, "-c", FETCH, model, revision]
        done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def test_a_model_is_fetched_once_and_without_pickles_or_code(self) -> None:
        with Hub({**self.files, "pytorch_model.bin": b"pickle", "modeling.py": b"code"}) as hub:
            folder = self.fetch(hub.url)
            fetched = {Path(path).name for path in hub.paths if "/resolve/" in path}
        self.assertIn("model.safetensors", fetched)
        self.assertFalse(fetched & {"pytorch_model.bin", "modeling.py"})
        self.assertEqual(self.fetch("http://127.0.0.1:9", offline=True), folder)
        engine = loading.load_engine(ModelSpec(name="m", task="text-classification", model=folder), "cpu")
        self.assertIn(engine.predict(["a cat"], {})[0]["label"], ("negative", "positive"))

    def test_code_in_the_configuration_is_refused(self) -> None:
        config = self.files["config.json"].replace(b"{", b'{"auto_map": {"AutoModel": "modeling.Mine"},', 1)
        with Hub({**self.files, "config.json": config, "modeling.py": b"open('/tmp/ran', 'w')"}) as hub:
            self.assertIn("auto_map", self.fetch(hub.url))

    def test_an_unknown_repository_and_a_hub_that_is_away_say_so(self) -> None:
        with Hub(self.files) as hub:
            self.assertIn("check the id", self.fetch(hub.url, "org/other"))
        self.assertIn("not in the cache", self.fetch("http://127.0.0.1:9", offline=True))
