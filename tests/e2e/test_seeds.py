"""docs/guide/from-the-seeds.md, with a pretrained fill-mask model, served by its id from a local hub, and MiniLM.

The model is RXNMapper's ALBERT, which reads chemistry: no hub with English ones is reached from here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import skipUnless

from django.conf import settings
from django.db.models import Max

from inference.models import Status
from tests.conditions import PATIENCE_S
from tests.e2e.case import StackCase
from tests.inference.engines.artifacts.hub import COMMIT, Hub
from tests.inference.engines.test_fill_mask import save
from tests.ports import HOST

FILL = f"""
[fill]
task = "fill-mask"
model = "org/tiny"
revision = "{COMMIT[:7]}"

[apart]
task = "fill-mask"
model = "org/tiny"
revision = "{COMMIT[:7]}"
max_batch_size = 1
"""
MASKED = ["CC(=O)O.OCC>>CC(=O)[MASK]CC", "C[MASK]", "CC(=O)O.OCC>>CC(=O)OCC.CCO[MASK]", "OCC[MASK]CC(=O)O", "[MASK]"]
SENTENCE = "a queue of texts that grew longer while the batch before it was still under way on its way to the answer"
TEXTS = [SENTENCE[: 3 + 5 * number] for number in range(20)]
NEAR = 1e-4


def flat(answer: Any) -> list[Any]:
    """Numbers and words of a JSON value, in order."""
    if isinstance(answer, list | dict):
        return [part for value in (answer.values() if isinstance(answer, dict) else answer) for part in flat(value)]
    return [answer]


class SeedsTests(StackCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        save(folder / "model")
        hub = cls.enterClassContext(Hub({file.name: file.read_bytes() for file in (folder / "model").iterdir()}))
        cls.options = {
            "models": (settings.BASE_DIR / "models.toml").read_text() + FILL,
            "replicas": 1,
            "environment": {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder), "HF_HUB_DISABLE_XET": "1"},
        }
        super().setUpClass()

    def call(self, model: str, inputs: Any) -> Any:
        answer = self.stack.call(inputs, model=model)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json

    def test_a_hub_id_in_models_toml_fills_the_masks_of_a_list_as_the_pipeline_does(self) -> None:
        from transformers import pipeline

        bare = pipeline("fill-mask", model=self.folder_of_model(), device="cpu")
        answers = self.call("fill", MASKED[:3])
        self.assertEqual(
            [answer[0]["token_str"] for answer in answers], [bare(text)[0]["token_str"] for text in MASKED[:3]]
        )
        self.assertEqual(answers[0][0]["token_str"], "O")

    def folder_of_model(self) -> str:
        """Where the service has put it."""
        [file] = Path(self.stack.environment["HF_HOME"]).glob("hub/models--org--tiny/snapshots/*/config.json")
        return str(file.parent)

    @skipUnless(shutil.which("curl"), "curl is not installed")
    def test_a_mask_is_filled_by_curl(self) -> None:
        url = f"http://{HOST}:{self.stack.port}/v1/models/fill"
        command = ["curl", "-s", url, "-H", "Content-Type: application/json", "-d", json.dumps({"inputs": MASKED[0]})]
        answers = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S).stdout)
        self.assertEqual(set(answers[0]), {"score", "token", "token_str", "sequence"})
        self.assertEqual(answers[0]["token_str"], "O")

    def test_batching_can_be_off_for_one_model(self) -> None:
        self.stack.finished(*self.stack.submit_together(MASKED * 4, model="apart"))
        largest = self.stack.jobs.filter(model="apart", status=Status.SUCCEEDED).aggregate(most=Max("batch_size"))
        self.assertEqual(largest["most"], 1)

    def test_alone_in_a_batch_in_a_list_and_mapped_an_input_has_the_same_answer(self) -> None:
        for model, inputs in (("fill", MASKED), ("embeddings", TEXTS)):
            alone = [self.call(model, value) for value in inputs]
            jobs = self.stack.finished(*self.stack.submit_together(inputs * 4, model=model, priority="normal"))
            together = [job.output for job in jobs]
            largest = self.stack.jobs.filter(model=model, size=1).aggregate(most=Max("batch_size"))["most"]
            self.assertGreater(largest, 1)
            for number, way in enumerate((together[: len(inputs)], together[-len(inputs) :], self.call(model, inputs))):
                with self.subTest(model, way=number):
                    self.assert_same(way, alone)
            with self.subTest(model, way="mapped"):
                self.assert_same(self.mapped(model, inputs), alone)

    def mapped(self, model: str, inputs: list[Any]) -> list[Any]:
        from batch_inference_client import Client

        with Client(f"http://{HOST}:{self.stack.port}") as client:
            return list(client.map(model, inputs))

    def assert_same(self, answers: Iterable[Any], expected: Iterable[Any]) -> None:
        for answer, right in zip(answers, expected, strict=True):
            for value, other in zip(flat(answer), flat(right), strict=True):
                if isinstance(other, float):
                    self.assertAlmostEqual(value, other, delta=NEAR)
                else:
                    self.assertEqual(value, other)
