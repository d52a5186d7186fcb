"""Requests of Text Embeddings Inference's clients become jobs, and these become answers in its form."""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
import struct
from pathlib import Path
from typing import Any
from unittest.mock import patch

from django.test import SimpleTestCase, override_settings

from api.errors.problems import ApiError
from api.requests.dialects import base
from api.requests.dialects.base import find_default_model
from api.requests.dialects.rerank import read_rerank
from api.requests.dialects.tei import read_embed, read_predict, read_similarity
from inference.catalog.lookup import get_spec
from inference.catalog.parameters import ParameterSpec
from inference.errors import InvalidInput, UnknownModel
from inference.fields.worker_documents import ReplicaSnapshot
from inference.models import Job, Worker
from inference.status import workers
from inference.values.priority import Priority
from tests.api.base import ApiTestCase
from tests.api.test_completions import answering
from tests.api.test_embeddings import OWN, embed, vector_of

MODELS_FILE = Path(__file__).with_name("retrieval.toml")
LABELS = [{"label": "good", "score": 0.75}, {"label": "bad", "score": 0.25}]
SENTENCES = {"source_sentence": "a", "sentences": ["b", "ccc"]}


def classify(value: Any, parameters: dict[str, Any]) -> Any:
    return LABELS


@override_settings(MODELS_FILE=MODELS_FILE)
class ReadTests(SimpleTestCase):
    """Each field becomes a part of a job, or is refused."""

    def test_texts_to_embed(self) -> None:
        for fields, parameters in (
            ({}, {}),
            ({"truncate": True, "truncation_direction": "Right", "prompt_name": None}, {}),
            ({"truncate": False, "normalize": False}, {"truncate": False, "normalize": False}),
            ({"prompt_name": "query", "dimensions": 64}, {"prompt_name": "query", "dimensions": 64}),
        ):
            for given, texts in (("a", ["a"]), (["a", ""], ["a", ""])):
                with self.subTest(fields, given=given):
                    submission = read_embed({"inputs": given, **fields}).submission
                    self.assertEqual((submission.inputs, submission.parameters), (texts, {**OWN, **parameters}))
                    self.assertEqual(submission.spec.name, "vectors")

    def test_a_text_to_compare_with_others(self) -> None:
        for fields, parameters in ({}, {}), ({"parameters": {"prompt_name": "q"}}, {"prompt_name": "q"}):
            submission = read_similarity({"inputs": SENTENCES, **fields}).submission
            expected = {**OWN, "normalize": True, **parameters}
            self.assertEqual((submission.inputs, submission.parameters), (["a", "b", "ccc"], expected))

    def test_texts_and_pairs_to_classify(self) -> None:
        pair = {"text": "a", "text_pair": "b"}
        for given, inputs, is_batch in (
            ("a", ["a"], False),
            (["a"], ["a"], False),
            (["a", "b"], [pair], False),
            ([["a"], ["a", "b"], "c"], ["a", pair, "c"], True),
        ):
            with self.subTest(given):
                request = read_predict({"inputs": given})
                self.assertEqual((request.submission.inputs, request.is_batch), (inputs, is_batch))
                self.assertEqual(request.submission.parameters, {"top_k": 1000})
        few = dataclasses.replace(get_spec("labels"), parameters={"top_k": ParameterSpec(type="integer", max=3)})
        self.assertEqual(read_predict({"inputs": "a"}, few).submission.parameters, {"top_k": 3})
        raw = read_predict({"inputs": "a", "raw_scores": True}).submission.parameters
        self.assertEqual(raw, {"top_k": 1000, "function_to_apply": "none"})

    def test_what_cannot_be_served_is_refused_with_the_field_and_what_would_be_right(self) -> None:
        for read, fields, field, words in (
            (read_embed, {"inputs": []}, "inputs", "a list of one text or more"),
            (read_embed, {"inputs": [1, 2]}, "inputs", "send texts"),
            (read_embed, {"inputs": ["a", None]}, "inputs[1]", "must be a text"),
            (read_embed, {"inputs": ["a", 3]}, "inputs[1]", "must be a text"),
            (read_embed, {}, "inputs", "must be a text"),
            (read_embed, {"inputs": "a", "truncation_direction": "Left"}, "truncation_direction", 'send "right"'),
            (read_embed, {"input": "a"}, "input", "did you mean inputs?"),
            (read_embed, {"inputs": "a", "model": "labels"}, "model", "'labels' does not answer this"),
            (read_embed, {"inputs": "a", "model": 3}, "model", "must be a name"),
            (read_similarity, {"inputs": "a"}, "inputs", '"source_sentence": "a text"'),
            (read_similarity, {"inputs": {**SENTENCES, "more": 1}}, "inputs", '"source_sentence": "a text"'),
            (read_similarity, {"inputs": {**SENTENCES, "sentences": []}}, "inputs.sentences", "one text or more"),
            (read_similarity, {"inputs": SENTENCES, "parameters": []}, "parameters", "must be an object"),
            (read_similarity, {"inputs": SENTENCES, "truncate": False}, "truncate", "belongs within parameters"),
            (read_similarity, {"inputs": SENTENCES, "parameters": {"x": 1}}, "parameters.x", "unknown field"),
            (read_predict, {"inputs": ["a", "b", "c"]}, "inputs", "a list of two that are one pair"),
            (read_predict, {"inputs": [["a"], ["a", 3]]}, "inputs[1]", "a list of two that are one pair"),
            (read_predict, {"inputs": "a", "truncate": 3}, "truncate", "must be true or false"),
            (read_predict, {"inputs": "a", "raw_scores": 1}, "raw_scores", "true or false"),
        ):  # fmt: skip
            with self.subTest(read.__name__, fields=fields):
                with self.assertRaises(InvalidInput) as caught:
                    read(fields)
                self.assertEqual(caught.exception.field, field)
                self.assertIn(words, caught.exception.message)
        with self.assertRaises(UnknownModel):
            read_embed({"inputs": "a", "model": "nope"})

    def test_one_of_several_models_answers_those_who_name_none_once_it_is_marked(self) -> None:
        vectors = get_spec("vectors")
        other = dataclasses.replace(vectors, name="other")
        two = {"vectors": vectors, "other": other}
        message = r'one of vectors, other, or have one marked with default_for = \["embed"'
        with patch.object(base, "get_catalog", return_value=two), self.assertRaisesRegex(ApiError, message):
            find_default_model("embed")
        marked = dataclasses.replace(other, default_for=("embed",))
        with patch.object(base, "get_catalog", return_value={"vectors": vectors, "other": marked}):
            self.assertIs(find_default_model("embed"), marked)
            with self.assertRaisesRegex(ApiError, "no model here answers this") as refused:
                find_default_model("predict")
        self.assertEqual(refused.exception.code, "bad_request")


@override_settings(MODELS_FILE=MODELS_FILE)
class AnswerTests(ApiTestCase):
    """The worker is played by the test."""

    def infer(self, answer: Any, path: str, inputs: Any, **fields: Any) -> Any:
        with self.worker(answer):
            return self.post(path, {"inputs": inputs, **fields})

    def test_vectors_are_lists_in_a_list_also_of_one_text(self) -> None:
        for path in ("/embed", "/v1/models/vectors/embed", "/"):
            for given, texts in (("a", ["a"]), (["a", "bb"], ["a", "bb"])):
                answer = self.infer(embed, path, given)
                self.assertEqual(answer.json(), list(map(vector_of, texts)))
                self.assertEqual(Job.objects.latest("created_at").route, path.replace("vectors", "NAME"))
        job = Job.objects.latest("created_at")
        self.assertEqual((job.size, answer["Content-Location"]), (2, f"/v1/jobs/{job.id}/output"))

    def test_of_each_text_the_vectors_of_its_tokens(self) -> None:
        """Each token's is that of the text here."""

        def embed_each(value: Any, parameters: dict[str, Any]) -> Any:
            if isinstance(value, list):
                return [embed_each(each, parameters) for each in value]
            packed = struct.pack("<3f", *vector_of(value)) * len(value)
            return {"embedding": base64.b64encode(packed).decode(), "tokens": len(value)}

        for path in ("/embed_all", "/v1/models/vectors/embed_all"):
            vectors = self.infer(embed_each, path, ["a", "bbb"], truncate=True).json()
            self.assertEqual(vectors, [[vector_of("a")], [vector_of("bbb")] * 3])
        self.assertEqual(Job.objects.latest("created_at").parameters, {**OWN, "pooling": "none"})
        refused = self.post("/embed_all", {"inputs": "a", "normalize": True})
        self.assertEqual((refused.status_code, refused.json()["error_type"]), (422, "Validation"))

    def test_similarities_are_products_of_vectors(self) -> None:
        def embed_on_a_circle(value: Any, parameters: dict[str, Any]) -> Any:
            angle = len(value) if isinstance(value, str) else 0
            numbers = struct.pack("<2f", math.cos(angle), 1.001 * math.sin(angle))
            return {"embedding": base64.b64encode(numbers).decode(), "tokens": 1}

        expected = [1.0, math.cos(1) * math.cos(3) + math.sin(1) * math.sin(3)]
        for path in ("/similarity", "/v1/models/vectors/similarity", "/v1/models/vectors"):
            with self.subTest(path):
                same, other = self.infer(embed_on_a_circle, path, SENTENCES).json()
                self.assertEqual(same, 1.0)  # and no more, whatever was rounded
                self.assertAlmostEqual(other, expected[1], places=2)
        given = {"normalize": False, "encoding_format": "float"}
        answer = self.infer(embed_on_a_circle, "/v1/models/vectors", SENTENCES, parameters=given)
        self.assertEqual((answer.json()[0], Job.objects.latest("created_at").parameters), (1.0, OWN))
        for wrong in {"pooling": "none"}, {"normalize": 3}, {"encoding_format": "x"}, {"details": "x"}:
            with self.subTest(wrong):
                refused = self.infer(embed_on_a_circle, "/v1/models/vectors", SENTENCES, parameters=wrong)
                problem = self.assert_problem(refused, 422, "invalid_input")
                self.assertIn(f"parameters.{next(iter(wrong))}", problem["detail"])

    def test_labels_are_in_lists_of_their_own_for_a_batch_alone(self) -> None:
        labels = [{"score": each["score"], "label": each["label"]} for each in LABELS]
        for path in ("/predict", "/v1/models/labels/predict"):
            self.assertEqual(self.infer(classify, path, "a").json(), labels)
            self.assertEqual(self.infer(classify, path, [["a"], ["b", "c"]]).json(), [labels, labels])

    def test_labels_of_an_engine_that_does_not_sort_them_come_the_likeliest_first(self) -> None:
        given = [{"label": "a", "score": 0}, {"label": "b", "score": 1}]
        found = self.infer(functools.partial(answering, given), "/predict", "a").json()
        self.assertEqual(found, [{"score": 1.0, "label": "b"}, {"score": 0.0, "label": "a"}])

    def test_problems_have_the_form_and_the_statuses_of_their_server(self) -> None:
        for path, fields, status, kind in (
            ("/embed", {"inputs": []}, 422, "Validation"),
            ("/embed", {"inputs": ["a"] * 10_001}, 413, "Validation"),
            ("/rerank", {"query": "a", "texts": ["a"] * 10_001}, 413, "Validation"),
            ("/v2/rerank", {"query": "a", "documents": ["a"] * 10_001}, 413, "Validation"),
            ("/", {"inputs": []}, 422, "Validation"),
            ("/v1/models/other/info", None, 422, "Validation"),
            ("/v1/models/labels/embed", {"inputs": "a"}, 422, "Validation"),
            ("/v1/models/nope/predict", {"inputs": "a"}, 404, "Validation"),
            ("/similarity", {"inputs": SENTENCES}, 503, "Overloaded"),  # nobody serves it
        ):
            with self.subTest(path):
                answer = self.post(path, fields) if fields else self.client.get(path)
                self.assertEqual((answer.status_code, answer.json()["error_type"]), (status, kind))
                self.assertEqual(answer["Content-Type"], "application/json")
        for code, status in (("queue_full", 429), ("overloaded", 429), ("bad_output", 424), ("not_finished", 504)):
            with patch("api.views.models.run_job_within_timeout", side_effect=ApiError("told", code)):
                answers = [self.post("/embed", {"inputs": "a"}), self.post("/rerank", {"query": "a", "texts": ["b"]})]
            for answer in answers:
                self.assertEqual((answer.status_code, answer.json()["error"]), (status, "told"))

    def test_what_is_refused_later_is_named_as_the_client_did(self) -> None:
        self.idle_worker()
        for path, fields, words in (
            ("/embed", {"inputs": "a", "normalize": 3}, "normalize: must be true or false"),
            ("/similarity", {"inputs": SENTENCES, "parameters": {"prompt_name": 3}}, "parameters.prompt_name: must be"),
        ):
            self.assertTrue(self.post(path, fields).json()["error"].startswith(words))

    def test_a_text_that_fails_is_named_as_the_client_did(self) -> None:
        request = read_similarity({"inputs": SENTENCES})
        for ours, theirs in (
            ("inputs[0]", "inputs.source_sentence"),
            ("inputs[2]: is empty", "inputs.sentences[1]: is empty"),
            ("inputs[0] to inputs[2]: too slow", "inputs.source_sentence to inputs.sentences[1]: too slow"),
            ("parameters.prompt_name: is none", "parameters.prompt_name: is none"),
        ):
            self.assertEqual(request.translate_field_names(ours), theirs)

    def test_one_text_to_classify_has_no_place_and_those_of_a_batch_have(self) -> None:
        for inputs, expected in (("a", "is wrong"), (["a", "b"], "is wrong"), ([["a"]], "inputs[0]: is wrong")):
            request = read_predict({"inputs": inputs})
            self.assertEqual(request.translate_field_names("inputs[0]: is wrong"), expected)

    def test_one_text_is_one_job_with_its_key_whatever_the_dialect(self) -> None:
        self.idle_worker()
        headers = {"Idempotency-Key": "one"}
        for path, field in (("/embed?timeout=0", "inputs"), ("/v1/embeddings?timeout=0", "input")):
            answer = self.post(path, {"model": "vectors", field: "a"}, headers=headers)
            self.assertEqual(answer.status_code, 504, answer.content)
        self.assertEqual(Job.objects.count(), 1)

    def test_an_engine_that_gives_something_else_is_at_fault(self) -> None:
        for path, answer in (
            ("/predict", [[{"label": "good"}]]),
            ("/predict", ["good"]),
            ("/predict", [LABELS, LABELS]),
            ("/embed", [0.5]),
            ("/embed_all", [{"embedding": "AAAAAA==", "tokens": 2}]),
            ("/embed_all", [{"embedding": "", "tokens": 0}]),
            ("/similarity", [embed("a", {})] * 2),
            ("/similarity", [embed("a", {}), {"embedding": "AAAAAA==", "tokens": 1}, embed("b", {})]),
        ):
            inputs = SENTENCES if path == "/similarity" else "a"
            with self.subTest(path, answer=str(answer)[:60]):
                response = self.infer(functools.partial(answering, answer), path, inputs)
                self.assertEqual((response.status_code, response.json()["code"]), (424, "bad_output"))

    def test_infinity_s_client_lists_the_models_that_answer_at_the_root(self) -> None:
        answer = self.client.get("/models").json()
        self.assertEqual([each["id"] for each in answer["data"]], ["vectors", "labels", "ranker"])
        self.assertEqual({tuple(each) for each in answer["data"]}, {("id", "object", "created", "stats")})

    def test_health_is_that_of_the_service(self) -> None:
        answer = self.client.get("/health")
        self.assertEqual((answer.status_code, answer.json()["error_type"]), (503, "unhealthy"))
        with patch("api.views.tei.readiness.find_problems", return_value=[]):
            answer = self.client.get("/health")
        self.assertEqual((answer.status_code, answer.content), (200, b""))

    def test_info_is_of_the_model_that_embeds_or_of_the_one_in_the_address(self) -> None:
        info = self.client.get("/info").json()
        self.assertEqual(info["model_id"], "/no/such/folder")
        self.assertEqual((info["model_type"], info["auto_truncate"]), ({"embedding": {}}, True))
        self.assertEqual((info["max_batch_tokens"], info["max_batch_requests"]), (8192, 32))
        for name, kind in (("labels", "classifier"), ("ranker", "reranker")):
            self.assertEqual(self.client.get(f"/v1/models/{name}/info").json()["model_type"], {kind: {}})

    def test_as_many_texts_are_taken_at_once_as_fit_in_the_queue(self) -> None:
        spec = dataclasses.replace(get_spec("vectors"), max_batch_size=2, max_queued=10)
        with patch("api.views.tei.get_spec", return_value=spec):
            info = self.client.get("/v1/models/vectors/info").json()
            self.assertEqual(info["max_client_batch_size"], 18)
            refused = self.post("/v1/models/vectors/embed", {"inputs": ["a"] * 19})
        self.assertEqual(refused.status_code, 413)
        self.assertIn("at most 18 texts", refused.json()["error"])

    def test_more_texts_fit_at_a_low_priority(self) -> None:
        spec = dataclasses.replace(get_spec("ranker"), max_batch_size=1, max_queued=10)
        body = {"query": "a", "documents": ["b"] * 10}
        with self.assertRaisesRegex(ApiError, "at most 9 texts"):
            read_rerank(body, spec)
        self.assertEqual(len(read_rerank({**body, "priority": 999}, spec).form.texts), 10)

    def test_info_has_what_a_worker_knows_of_the_weights(self) -> None:
        names = {"0": "bad", "1": "good"}
        facts: dict[str, Any] = {"vectors": {"pooling": "lasttoken"}, "labels": {"id2label": names}}
        self.idle_worker()
        Worker.objects.update(replicas={"0": ReplicaSnapshot(facts=facts)})
        workers.read_serving_replicas.forget()
        for name, expected in (
            ("vectors", {"embedding": {"pooling": "last_token"}}),
            ("labels", {"classifier": {"id2label": names, "label2id": {"bad": 0, "good": 1}}}),
            ("ranker", {"reranker": {}}),
        ):
            self.assertEqual(self.client.get(f"/v1/models/{name}/info").json()["model_type"], expected)


@override_settings(MODELS_FILE=MODELS_FILE)
class CohereTests(ApiTestCase):
    """Vectors in the forms of Cohere's first and second version."""

    def embed_texts(self, path: str, **fields: Any) -> Any:
        with self.worker(embed):
            return self.post(path, {"model": "vectors", "texts": ["a cat", "b"], **fields})

    def test_vectors_come_in_the_forms_that_were_requested(self) -> None:
        floats = [vector_of("a cat"), vector_of("b")]
        texts = [embed(text, {})["embedding"] for text in ("a cat", "b")]
        for path, forms, kind, expected in (
            ("/v2/embed", ["float"], "embeddings_by_type", {"float": floats}),
            ("/v2/embed", None, "embeddings_by_type", {"float": floats}),
            ("/v2/embed", ["base64", "float"], "embeddings_by_type", {"base64": texts, "float": floats}),
            ("/v1/embed", ["float"], "embeddings_by_type", {"float": floats}),
            ("/v1/embed", None, "embeddings_floats", floats),
        ):  # fmt: skip
            with self.subTest(path, forms=forms):
                answer = self.embed_texts(path, embedding_types=forms, input_type="search_query", truncate="END").json()
                job = Job.objects.latest("created_at")
                self.assertEqual((answer["embeddings"], answer["response_type"]), (expected, kind))
                self.assertEqual((answer["id"], answer["texts"]), (str(job.id), ["a cat", "b"]))
                meta = {"api_version": {"version": path[2]}, "billed_units": {"input_tokens": 7}}
                self.assertEqual(answer["meta"], meta)
                self.assertEqual(job.parameters, {**OWN, "input_type": "query"})
                self.assertEqual(job.priority, Priority.NORMAL)

    def test_what_cannot_be_served_is_refused_with_the_field_and_what_would_be_right(self) -> None:
        self.idle_worker()
        for fields, words in (
            ({"texts": []}, "texts: must be a list of one text or more"),
            ({"texts": "a"}, "texts: must be a list of one text or more"),
            ({"embedding_types": ["int8"]}, "embedding_types: must be a list of float or base64"),
            ({"embedding_types": [["float"]]}, "embedding_types: must be a list of float or base64"),
            ({"truncate": "START"}, "truncate: must be END or NONE"),
            ({"truncate": ["END"]}, "truncate: must be END or NONE"),
            ({"input_type": "image"}, 'input_type: must be one of "query"'),
            ({"input_type": 3}, "input_type: must be a string"),
            ({"output_dimension": "a"}, "output_dimension: must be a whole number"),
            ({"images": ["x"]}, "images: is not served here; leave it out, or send []"),
            ({"input": "x"}, "input: unknown field"),
            ({"model": "labels"}, "model: 'labels' gives no vectors of texts"),
        ):
            with self.subTest(fields):
                answer = self.post("/v2/embed", {"model": "vectors", "texts": ["a"], **fields})
                self.assertEqual(answer.status_code, 422)
                self.assertTrue(answer.json()["message"].startswith(words), answer.json())
        self.assertEqual(self.post("/v2/embed", {"model": "nope", "texts": ["a"]}).status_code, 404)
