"""Requests to rank texts, in the words of other servers, become jobs, and these become answers in their form."""

from __future__ import annotations

import functools
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from django.test import SimpleTestCase, override_settings

from api.answers.rankings import write_ranking
from api.errors.problems import ApiError
from api.requests.dialects import rerank
from inference.catalog.lookup import get_spec
from inference.errors import InvalidInput, UnknownModel
from inference.models import Job
from inference.values.priority import Priority
from tests.api.base import ApiTestCase
from tests.api.test_completions import answering

MODELS_FILE = Path(__file__).with_name("ranking.toml")
ROOTS = ("/rerank", "/v1/rerank", "/v2/rerank", "/openai/v1/rerank")
ADDRESSES = (*ROOTS, "/v1/models/ranker/rerank")
BODY: dict[str, Any] = {"model": "ranker", "query": "q", "documents": ["b", "ddd", "cc"]}


def score(value: Any, parameters: dict[str, Any]) -> Any:
    """Answer pairs as the engine does: the longer the text, the better."""
    if isinstance(value, list):
        return [score(each, parameters) for each in value]
    return {"label": "LABEL_0", "score": float(len(value["text_pair"])) - 2.0}


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


@override_settings(MODELS_FILE=MODELS_FILE)
class ReadTests(SimpleTestCase):
    """Each field becomes a part of a job, or is refused."""

    def refused(self, **fields: Any) -> InvalidInput:
        with self.assertRaises(InvalidInput) as caught:
            rerank.read_rerank({**BODY, **fields})
        return caught.exception

    def test_each_text_is_a_pair_with_the_query(self) -> None:
        pairs = [{"text": "q", "text_pair": text} for text in ("a", "")]
        for fields, names_texts in (
            ({"documents": ["a", ""]}, False),
            ({"documents": [{"text": "a"}, {"text": ""}]}, False),
            ({"texts": ["a", ""]}, True),
        ):
            with self.subTest(fields):
                request = rerank.read_rerank({"model": "ranker", "query": "q", **fields})
                self.assertEqual((request.submission.inputs, request.form.names_texts), (pairs, names_texts))
                self.assertEqual(request.submission.parameters, {"function_to_apply": "none", "details": True})
                self.assertEqual(
                    (request.form.texts, request.form.top_n, request.form.is_raw), (["a", ""], None, False)
                )

    def test_fields_of_each_client(self) -> None:
        for fields, name, expected in (
            ({"top_n": 2}, "top_n", 2),
            ({"top_k": 2}, "top_n", 2),
            ({"top_n": None}, "top_n", None),
            ({"return_documents": True}, "returns_texts", True),
            ({"return_text": True}, "returns_texts", True),
            ({"raw_scores": True}, "is_raw", True),
            ({"max_tokens_per_doc": None, "rank_fields": [], "truncate": True}, "is_raw", False),
            ({"truncation_direction": "Right", "max_chunks_per_doc": None}, "is_raw", False),
            ({"user": "u", "input_type": "x", "modality": "text", "rank_fields": ["text"]}, "is_raw", False),
            ({"embedding_types": ["float"], "truncate": "END"}, "is_raw", False),
        ):
            with self.subTest(fields):
                self.assertEqual(getattr(rerank.read_rerank({**BODY, **fields}).form, name), expected)
        kept = rerank.read_rerank({**BODY, "truncate": False}).submission.parameters
        self.assertEqual(kept, {**rerank.LOGITS, "truncate": False})
        limited = rerank.read_rerank({**BODY, "max_tokens_per_doc": 4096}).submission.parameters
        self.assertEqual(limited, {**rerank.LOGITS, "max_document_tokens": 4096})
        for priority, expected in ((0, Priority.NORMAL), (499, Priority.NORMAL), (500, Priority.LOW)):
            self.assertEqual(rerank.read_rerank({**BODY, "priority": priority}).submission.priority, expected)

    def test_a_query_that_fails_beside_each_text_is_named_once(self) -> None:
        request = rerank.read_rerank(BODY)
        for ours, theirs in (
            ("inputs[1]: The query has 400 tokens.", "query: The query has 400 tokens."),
            ("inputs[1]: is too long", "documents[1]: is too long"),
            ("inputs[0] to inputs[1]: too slow", "documents[0] to documents[1]: too slow"),
        ):
            self.assertEqual(request.translate_field_names(ours), theirs)

    def test_who_names_no_model_has_the_one_that_ranks(self) -> None:
        for fields in ({}, {"model": None}, {"model": "default/not-specified"}):
            request = rerank.read_rerank({"query": "q", "texts": ["a"], **fields})
            self.assertEqual(request.submission.spec.name, "ranker")
        self.assertEqual(rerank.read_rerank({**BODY, "model": "x"}, get_spec("ranker")).submission.spec.name, "ranker")
        for table, words in (
            ('[a]\nengine = "x:Y"\ntask = "text-ranking"\n[b]\nengine = "x:Y"\ntask = "text-ranking"\n', "one of a, b"),
            ('[a]\nengine = "x:Y"\n', "no model here answers this"),
        ):
            with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
                file.write(table)
                file.flush()
                with override_settings(MODELS_FILE=Path(file.name)), self.assertRaises(ApiError) as caught:
                    rerank.read_rerank({"query": "q", "texts": ["a"]})
            self.assertIn(words, caught.exception.message)

    def test_what_cannot_be_served_is_refused_with_the_field_and_what_would_be_right(self) -> None:
        for fields, field, words in (
            ({"documents": []}, "documents", "a list of one text or more"),
            ({"documents": "a"}, "documents", "a list of one text or more"),
            ({"documents": ["a", 3]}, "documents[1]", 'a text, or {"text": "…"}'),
            ({"documents": [{"title": "a"}]}, "documents[0]", 'a text, or {"text": "…"}'),
            ({"documents": None, "texts": [None]}, "texts[0]", "must be a text"),
            ({"query": None}, "query", "must be a text"),
            ({"query": ["q"]}, "query", "must be a text"),
            ({"query": "q" * 1_000_001, "documents": ["a"] * 10}, "query", "beside each of 10 texts are too many"),
            ({"top_n": 0}, "top_n", "a whole number from 1"),
            ({"top_n": True}, "top_n", "a whole number from 1"),
            ({"top_k": 0}, "top_k", "a whole number from 1"),
            ({"raw_scores": "yes"}, "raw_scores", "true or false"),
            ({"priority": 1000}, "priority", "from 0, which is first, to 999"),
            ({"truncate": 3}, "truncate", "must be true or false"),
            ({"max_tokens_per_doc": 0}, "max_tokens_per_doc", "a whole number from 1"),
            ({"texts": ["a"]}, "texts", "is the same as documents; send one of them"),
            ({"top_n": 1, "top_k": 1}, "top_k", "is the same as top_n; send one of them"),
            ({"docs": ["a"]}, "docs", "unknown field; did you mean"),
            ({"model": 3}, "model", "must be a name"),
            ({"model": "sentiment"}, "model", "does not rank texts"),
        ):
            with self.subTest(fields):
                error = self.refused(**fields)
                self.assertEqual(error.field, field)
                self.assertIn(words, error.message)
        with self.assertRaises(UnknownModel):
            rerank.read_rerank({**BODY, "model": "nope"})


@override_settings(MODELS_FILE=MODELS_FILE)
class AnswerTests(ApiTestCase):
    """The worker is played by the test."""

    def rank(self, path: str, answer: Any = score, **fields: Any) -> Any:
        with self.worker(answer):
            return self.post(path, {**BODY, **fields})

    def test_documents_are_ranked_in_an_object_at_every_address(self) -> None:
        for path in ADDRESSES:
            with self.subTest(path):
                answer = self.rank(path)
                job = Job.objects.latest("created_at")
                results = [{"index": index, "relevance_score": sigmoid(x)} for index, x in ((1, 1), (2, 0), (0, -1))]
                expected = {"id": str(job.id), "object": "rerank", "model": "ranker", "results": results}
                self.assertEqual((answer.json(), job.size), (expected, 3))
                self.assertEqual(answer["Content-Location"], f"/v1/jobs/{job.id}/output")

    def test_the_tokens_that_were_read_are_counted_where_the_engine_reports_them(self) -> None:
        form = rerank.read_ranking_form(BODY)
        scored = [{"score": 0.5, "tokens": count} for count in (7, 8, 9)]
        usage = {"prompt_tokens": 24, "total_tokens": 24}
        self.assertEqual(json.loads(write_ranking(Job(output=scored), form))["usage"], usage)
        self.assertNotIn("usage", json.loads(write_ranking(Job(output=[*scored[:2], {"score": 0.5}]), form)))

    def test_texts_are_ranked_in_a_list(self) -> None:
        for path in ("/rerank", "/v1/models/ranker/rerank"):
            results = self.rank(path, documents=None, texts=["b", "ddd"], return_text=True, raw_scores=True).json()
            self.assertEqual(
                results, [{"index": 1, "score": 1.0, "text": "ddd"}, {"index": 0, "score": -1.0, "text": "b"}]
            )

    def test_the_best_alone_with_its_document(self) -> None:
        results = self.rank("/v2/rerank", top_n=1, return_documents=True).json()["results"]
        self.assertEqual(results, [{"index": 1, "relevance_score": sigmoid(1), "document": {"text": "ddd"}}])

    def test_texts_of_one_score_keep_their_order(self) -> None:
        results = self.rank("/rerank", documents=["aa", "bb", "cc"]).json()["results"]
        self.assertEqual([each["index"] for each in results], [0, 1, 2])

    def test_a_score_may_be_a_whole_number(self) -> None:
        job = Job(output=[{"score": 0}, {"score": 1}, {"score": -1.0}])
        scores = [
            each["relevance_score"]
            for each in json.loads(write_ranking(job, rerank.read_ranking_form(BODY)))["results"]
        ]
        self.assertEqual(scores, [sigmoid(1), 0.5, sigmoid(-1)])

    def test_no_logit_is_too_large(self) -> None:
        form = rerank.read_ranking_form(BODY)
        job = Job(output=[{"score": -1e4}, {"score": 1e4}, {"score": 0.0}])
        scores = [each["relevance_score"] for each in json.loads(write_ranking(job, form))["results"]]
        self.assertEqual(scores, [1.0, 0.5, 0.0])

    def test_problems_are_shown_where_each_client_looks(self) -> None:
        wrong: list[tuple[str, dict[str, Any], int]] = [
            (path, {"top_n": 0}, 422) for path in (*ROOTS[:3], ADDRESSES[-1])
        ]
        for path, fields, status in (*wrong, *((path, {"model": "nope"}, 404) for path in ROOTS[:3])):
            answer = self.post(path, {**BODY, **fields})
            self.assertEqual((answer.status_code, answer["Content-Type"]), (status, "application/json"))
            self.assertEqual(answer.json()["error_type"], "Validation")
            self.assertEqual(answer.json()["error"], answer.json()["message"])
        answer = self.post(ROOTS[0], BODY)  # nobody serves it
        self.assertEqual((answer.status_code, answer.json()["error_type"]), (503, "Overloaded"))
        self.assertEqual(self.post(ROOTS[3], {**BODY, "top_n": 0}).json()["error"]["param"], "top_n")

    def test_an_engine_that_gives_no_scores_is_at_fault(self) -> None:
        one = {"label": "LABEL_0", "score": 0.5}
        lists = (["x"] * 3, [one] * 2, [one, one, {"label": "LABEL_0"}], [one, one, {"score": True}], [one, one, [one]])
        for answer in ("x", *lists):
            response = self.rank("/v2/rerank", functools.partial(answering, answer))
            self.assertEqual((response.status_code, response.json()["code"]), (502, "bad_output"))
