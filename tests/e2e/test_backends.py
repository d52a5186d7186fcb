"""A model that another backend computes, from models.toml to the answer."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tests import tiny_models
from tests.e2e.case import ShowingLog
from tests.stack import Stack

TEXTS = ["the cat runs in paris", "a dog", "it was a good house and the red cat sleeps on it", "small"]
TABLES = """
[plain]
task = "text-classification"
model = "{0}/classes"

[fast]
task = "text-classification"
model = "{0}/classes"
backend = "openvino"

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
        self.stack = self.enterContext(Stack(models=TABLES.format(folder), replicas=2))
        plain, fast = (self.stack.post(f"/v1/models/{name}", {"inputs": TEXTS}).json for name in ("plain", "fast"))
        for wanted, found in zip(plain, fast, strict=True):
            self.assertEqual([label["label"] for label in found], [label["label"] for label in wanted])
            self.assertAlmostEqual(found[0]["score"], wanted[0]["score"], places=4)
        self.assertRegex(self.note("fast"), "openvino computes it in float32: 12 of 12 labels are those of torch")
        vectors = [
            self.stack.post(f"/v1/models/{name}", {"inputs": TEXTS}).json for name in ("vectors", "fast-vectors")
        ]
        for wanted, found in zip(*vectors, strict=True):
            self.assertGreater(sum(a * b for a, b in zip(wanted, found, strict=True)), 0.98)
        self.assertRegex(self.note("fast-vectors"), "openvino computes it in int8")
        for name in ("classes", "states"):
            exports = [path for path in (folder / name / "exported").iterdir() if path.is_dir()]
            self.assertEqual(len(exports), 1)

    def note(self, name: str) -> Any:
        return self.stack.get(f"/v1/models/{name}").json["served"]["note"]
