"""A model that another backend computes, from models.toml to the answer."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tests import tiny_models
from tests.conditions import eventually
from tests.e2e.case import ShowingLog
from tests.stack import Stack

HOLDS_EXPORTS = """
import pathlib, signal

rename = pathlib.Path.rename

def held(self, target):
    if ".part-" in self.name:
        signal.pause()
    return rename(self, target)

pathlib.Path.rename = held
"""
TEXTS = ["the cat runs in paris", "a dog", "it was a good house and the red cat sleeps on it", "small"]
FAST = """
[fast]
task = "text-classification"
model = "{0}/classes"
backend = "openvino"
"""
TABLES = """
[plain]
task = "text-classification"
model = "{0}/classes"

[vectors]
engine = "inference.engines.embeddings:SentenceEmbeddings"
model = "{0}/states"

[fast-vectors]
engine = "inference.engines.embeddings:SentenceEmbeddings"
model = "{0}/states"
backend = "openvino"
precision = "int8"
"""


class BackendsTests(ShowingLog):
    def test_the_answers_are_those_of_torch_from_one_export_of_two_replicas(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        tiny_models.build("text-classification", folder / "classes")
        tiny_models.build("feature-extraction", folder / "states")
        self.stack = self.enterContext(Stack(models=TABLES.format(folder) + FAST.format(folder), replicas=2))
        plain, fast = (self.stack.call(TEXTS, model=name).json for name in ("plain", "fast"))
        for wanted, found in zip(plain, fast, strict=True):
            self.assertEqual([label["label"] for label in found], [label["label"] for label in wanted])
            self.assertAlmostEqual(found[0]["score"], wanted[0]["score"], places=4)
        self.assertRegex(self.note("fast"), "openvino computes it in float32: 12 of 12 labels are those of torch")
        vectors = [self.stack.call(TEXTS, model=name).json for name in ("vectors", "fast-vectors")]
        for wanted, found in zip(*vectors, strict=True):
            self.assertGreater(sum(a * b for a, b in zip(wanted, found, strict=True)), 0.98)
        self.assertRegex(self.note("fast-vectors"), "openvino computes it in int8")
        for name in ("classes", "states"):
            exports = [path for path in (folder / name / "exported").iterdir() if path.is_dir()]
            self.assertEqual(len(exports), 1)

    def test_a_worker_that_is_killed_in_the_middle_of_an_export_leaves_nothing_behind(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        tiny_models.build("text-classification", folder / "classes")
        exports = folder / "classes" / "exported"
        (folder / "sitecustomize.py").write_text(HOLDS_EXPORTS)
        self.stack = self.enterContext(Stack(models=FAST.format(folder), workers=0, replicas=1))
        job = self.stack.submit(TEXTS, model="fast")
        worker = self.stack.start_worker(PYTHONPATH=str(folder))
        eventually(lambda: any(exports.glob("*.part-*")), "an export begins")
        worker.kill()
        (begun,) = (path for path in exports.iterdir() if path.is_dir())
        self.assertIn(".part-", begun.name)
        self.stack.start_worker()
        (done,) = self.stack.finished(job)
        self.assertEqual(done.status, "succeeded")
        (kept,) = (path for path in exports.iterdir() if path.is_dir())
        self.assertEqual(kept.suffix, "")
        eventually(lambda: "openvino computes it" in (self.note("fast") or ""), "its page says so")

    def note(self, name: str) -> Any:
        return self.stack.get(f"/v1/models/{name}").json["served"]["note"]
