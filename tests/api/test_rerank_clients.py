"""Cohere's unmodified client of JavaScript, and plain HTTP in the other forms, have texts ranked over a socket: a small
cross-encoder, a real worker.

The examples of docs/rerank.md run as they stand there.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from django.conf import settings
from transformers import pipeline

from tests import javascript, tiny_models
from tests.e2e.case import StackCase
from tests.ports import HOST
from tests.stack import Stack

QUERY = "the cat runs in paris"
TEXTS = ["a dog", "the cat runs", "it was a good house and the red cat sleeps on it", "", "small"]
PAGE = (Path(settings.BASE_DIR) / "docs" / "rerank.md").read_text()
COMMANDS = re.findall(r"^curl (?:.*\\\n)*.*", PAGE, re.MULTILINE)


class RerankClientTests(StackCase):
    key: str
    base: str
    logits: list[float]

    @classmethod
    def setUpClass(cls) -> None:
        folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        ranker = str(tiny_models.build("text-ranking", folder / "ranker"))
        models = f'[ranker]\ntask = "text-ranking"\nmodel = "{ranker}"\n'
        cls.stack = cls.enterClassContext(Stack(models=models, replicas=1, environment={"API_KEY_REQUIRED": "1"}))
        cls.key = cls.stack.issue_key("client")
        cls.base = f"http://{HOST}:{cls.stack.port}"
        library = pipeline("text-classification", model=ranker, device="cpu")
        pairs = [{"text": QUERY, "text_pair": text} for text in TEXTS]
        cls.logits = [library([pair], function_to_apply="none")[0]["score"] for pair in pairs]

    def post(self, path: str, body: Any) -> Any:
        return self.stack.post(path, body, headers={"Authorization": f"Bearer {self.key}"})

    @property
    def order(self) -> list[int]:
        return sorted(range(len(TEXTS)), key=lambda index: -self.logits[index])

    def assert_scored(self, results: list[Any], name: str, *, raw: bool = False) -> None:
        for result in results:
            logit = self.logits[result["index"]]
            self.assertAlmostEqual(result[name], logit if raw else 1 / (1 + math.exp(-logit)), places=4)

    def test_scores_are_the_library_s_in_every_form(self) -> None:
        self.assertEqual(len(set(self.logits)), len(TEXTS))
        for path in ("/v1/rerank", "/v2/rerank", "/openai/v1/rerank"):
            with self.subTest(path):
                results = self.post(path, {"model": "ranker", "query": QUERY, "documents": TEXTS}).json["results"]
                self.assertEqual([each["index"] for each in results], self.order)
                self.assert_scored(results, "relevance_score")
        for path in ("/rerank", "/v1/models/ranker/rerank"):
            with self.subTest(path):
                ranked = self.post(path, {"query": QUERY, "texts": TEXTS, "raw_scores": True}).json
                self.assertEqual([each["index"] for each in ranked], self.order)
                self.assert_scored(ranked, "score", raw=True)

    def test_many_texts_are_one_job_of_many_batches(self) -> None:
        documents = [f"{'long ' * (number % 5)}text {number}" for number in range(200)]
        results = self.post("/v1/rerank", {"query": QUERY, "documents": documents, "top_n": 3}).json["results"]
        job = self.stack.jobs.get(size=len(documents))
        self.assertGreater(job.parts or 0, 1)
        scores = [output["score"] for output in job.output]
        self.assertEqual([each["index"] for each in results], sorted(range(200), key=lambda n: -scores[n])[:3])

    @javascript.needed
    def test_cohere_s_client_of_javascript(self) -> None:
        texts = [text for text in TEXTS if text]
        told = javascript.run("rerank.mjs", self.base, self.key, QUERY, *texts)
        kept = [TEXTS.index(text) for text in texts]
        order = [kept.index(index) for index in self.order if index in kept]
        self.assertEqual([each["index"] for each in told["v2"]["results"]], order)
        best = [{"index": each["index"], "text": each["document"]["text"]} for each in told["v1"]["results"]]
        self.assertEqual(best, [{"index": index, "text": texts[index]} for index in order[:2]])
        self.assertEqual(told["no model"]["status"], 404)
        self.assertIn("There is no model 'nope'", told["no model"]["body"]["message"])
        self.assertEqual(told["no documents"]["status"], 422)
        self.assertIn("documents: must be a list of one text or more", told["no documents"]["body"]["message"])

    def test_the_page_s_examples(self) -> None:
        self.assertEqual(len(COMMANDS), 2)
        for command in COMMANDS:
            code = command.replace("http://127.0.0.1:8000", self.base).replace("KEY", self.key)
            told = subprocess.run(shlex.split(code.replace("\\\n", " ")), capture_output=True, check=True).stdout
            ranked = json.loads(told)
            self.assertEqual(len(ranked if isinstance(ranked, list) else ranked["results"]), 2)
