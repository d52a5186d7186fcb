"""An input has one answer: alone, in a list, mapped, as a future, and read by whoever lists jobs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from batch_inference_client import Client
from inference.engines.runtime import parity
from tests import tiny_models
from tests.conditions import PATIENCE_S
from tests.e2e.case import StackCase
from tests.ports import HOST
from tests.stack import Stack

INPUTS = {
    "text-classification": ["the cat is in paris", "a dog", "the house is red and the cat is in it"],
    "token-classification": ["the cat is in paris", "a dog"],
    "fill-mask": ["the [MASK] is red", "a [MASK] in paris is red"],
    "feature-extraction": ["the cat", "a dog is in the house"],
    "zero-shot-classification": ["the cat is in paris", "a dog"],
}
PARAMETERS: dict[str, dict[str, Any]] = {"zero-shot-classification": {"candidate_labels": ["a cat", "a dog"]}}


class SameAnswerTests(StackCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        tables = [f'[{task}]\ntask = "{task}"\nmodel = "{tiny_models.build(task, folder / task)}"\n' for task in INPUTS]
        cls.stack = cls.enterClassContext(Stack(models="\n".join(tables), replicas=1))

    def test_an_input_has_the_same_answer_however_it_is_sent(self) -> None:
        with Client(f"http://{HOST}:{self.stack.port}") as client:
            for task, inputs in INPUTS.items():
                parameters = PARAMETERS.get(task)
                alone = [client.run(task, each, parameters=parameters) for each in inputs]
                futures = [client.submit(task, each, parameters=parameters) for each in inputs]
                ways = {
                    "listed": client.run(task, inputs, parameters=parameters),
                    "mapped": list(client.map(task, inputs, parameters=parameters)),
                    "as futures": [future.result(PATIENCE_S) for future in futures],
                    "in pages": self.in_pages([future.id for future in futures]),
                    "blocking": [self.blocking(task, each, parameters) for each in inputs],
                }
                for way, answers in ways.items():
                    with self.subTest(task, way=way):
                        self.assertTrue(parity.are_alike(answers, alone), (answers, alone))

    def in_pages(self, ids: list[str]) -> list[Any]:
        page = self.stack.get("/v1/jobs?outputs=1&limit=500", headers={"Prefer": "outputs=plain"}).json
        found = {job["id"]: job["output"] for job in page["items"]}
        return [found[job_id] for job_id in ids]

    def blocking(self, task: str, inputs: Any, parameters: dict[str, Any] | None) -> Any:
        body = {"inputs": inputs, **({"parameters": parameters} if parameters else {})}
        return self.stack.post(f"/v1/models/{task}", body, headers={"Prefer": "outputs=plain"}).json
