"""The client without the service: imported where Django and torch cannot be."""

from __future__ import annotations

import subprocess
import sys
import unittest
from pathlib import Path

from tests.conditions import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent
SCRIPT = """
import sys

ALLOWED = {"batch_inference_client", "urllib3", *sys.stdlib_module_names}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ALLOWED:
            raise ModuleNotFoundError(f"{name} is blocked here", name=name)

sys.meta_path.insert(0, Blocker())
import batch_inference_client
import batch_inference_client.__main__
assert not any(name in sys.modules for name in ("django", "torch", "celery", "inference"))
print(batch_inference_client.Client("http://127.0.0.1:1"))
"""


class AloneTests(unittest.TestCase):
    def test_it_needs_the_standard_library_and_urllib3_only(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
