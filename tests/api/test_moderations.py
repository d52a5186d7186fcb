"""Requests of OpenAI's clients to tell harmful texts become jobs, and these become answers in its form."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any
from unittest.mock import patch

from django.test import SimpleTestCase, override_settings

from api.errors.problems import ApiError
from api.requests.dialects import base
from api.requests.dialects.moderations import read_moderation
from inference.catalog.lookup import get_spec
from inference.errors import InvalidInput, UnknownModel
from inference.models import Job
from inference.values.priority import Priority
from tests.api.base import ApiTestCase
from tests.api.test_completions import answering

MODELS_FILE = Path(__file__).with_name("moderating.toml")
ADDRESSES = ("/v1/moderations", "/openai/v1/moderations")


def judge(value: Any, parameters: dict[str, Any]) -> Any:
    """Answer as the engine does: the longer a text, the more it is an insult."""
    if isinstance(value, list):
        return [judge(each, parameters) for each in value]
    insult = min(len(value) / 10, 1.0)
    labels = [("insult", insult), ("neutral", 1.0 - insult), ("threat", 0.25)]
    return [{"label": label, "score": score} for label, score in sorted(labels, key=lambda pair: -pair[1])]


@override_settings(MODELS_FILE=MODELS_FILE)
class ReadTests(SimpleTestCase):
    """Each field becomes a part of a job, or is refused."""

    def test_a_text_several_texts_or_the_parts_of_one(self) -> None:
        part = {"type": "text", "text": "a"}
        for given, texts in (
            ("a", ["a"]),
            (["a", ""], ["a", ""]),
            ([part], ["a"]),
            ([part, {"type": "text", "text": "b"}], ["a\nb"]),
        ):
            with self.subTest(given):
                submission = read_moderation({"model": "toxic", "input": given, "user": "me"}).submission
                self.assertEqual((submission.inputs, submission.parameters), (texts, {"top_k": 1000}))

    def test_the_model_is_the_one_that_is_named_or_marked(self) -> None:
        for fields, name in (({"model": "toxic"}, "toxic"), ({"model": None}, "strict"), ({}, "strict")):
            request = read_moderation({"input": "a", "service_tier": "flex", **fields})
            self.assertEqual((request.submission.spec.name, request.submission.priority), (name, Priority.LOW))
        with (
            patch.object(base, "get_catalog", return_value={"sentiment": get_spec("sentiment")}),
            self.assertRaisesRegex(ApiError, "model: no model here tells harmful texts: .*harmless_labels"),
        ):
            read_moderation({"input": "a"})

    def test_what_cannot_be_served_is_refused_with_the_field_and_what_would_be_right(self) -> None:
        image = {"type": "image_url", "image_url": {"url": "data:"}}
        for fields, field, words in (
            ({"input": []}, "input", "a list of one text or more"),
            ({"input": None}, "input", "must be a text"),
            ({"input": ["a", 1]}, "input", "a list of one text or more"),
            ({"input": ["a", {"type": "text", "text": "b"}]}, "input", "or a list of parts of a text"),
            ({"input": [{"type": "text", "text": "b"}, image]}, "input[1]", "images are not looked at here"),
            ({"inputs": "a"}, "inputs", "did you mean input?"),
            ({"model": "sentiment"}, "model", 'such as harmless_labels = ["neutral"]'),
            ({"model": "other"}, "model", "'other' does not tell harmful texts"),
            ({"model": 3}, "model", "must be a name"),
        ):
            with self.subTest(fields):
                with self.assertRaises(InvalidInput) as caught:
                    read_moderation({"input": "a", **fields})
                self.assertEqual(caught.exception.field, field)
                self.assertIn(words, caught.exception.message)
        with self.assertRaises(UnknownModel):
            read_moderation({"input": "a", "model": "omni-moderation-latest"})


@override_settings(MODELS_FILE=MODELS_FILE)
class AnswerTests(ApiTestCase):
    """The worker is played by the test."""

    def moderate(self, given: Any, answer: Any = judge, path: str = ADDRESSES[0], **fields: Any) -> Any:
        with self.worker(answer):
            return self.post(path, {"input": given, **fields})

    def test_each_text_has_its_categories_without_the_harmless_ones(self) -> None:
        for path in ADDRESSES:
            with self.subTest(path):
                answer = self.moderate(["you fool!", "hello"], path=path, model="toxic")
                job = Job.objects.latest("created_at")
                first, second = answer.json().pop("results")
                self.assertEqual((answer.json()["id"], answer.json()["model"]), (f"modr-{job.id}", "toxic"))
                self.assertEqual((job.route, answer["Content-Location"]), (path, f"/v1/jobs/{job.id}/output"))
                self.assertEqual(first, {
                    "flagged": True,
                    "categories": {"insult": True, "threat": False},
                    "category_scores": {"insult": 0.9, "threat": 0.25},
                    "category_applied_input_types": {"insult": ["text"], "threat": ["text"]},
                })  # fmt: skip
                self.assertEqual((second["flagged"], second["category_scores"]["insult"]), (True, 0.5))
        self.assertFalse(self.moderate("hi", model="toxic").json()["results"][0]["flagged"])

    def test_the_operator_s_threshold_and_labels_hold(self) -> None:
        (result,) = self.moderate("x").json()["results"]
        self.assertEqual(result["categories"], {"neutral": True, "threat": True, "insult": True})
        self.assertEqual(Job.objects.latest("created_at").model, "strict")

    def test_of_labels_with_one_name_the_likeliest_counts(self) -> None:
        labels = [("insult", 0.8), ("neutral", 0.15), ("insult", 0.05)]
        answer = functools.partial(answering, [{"label": label, "score": score} for label, score in labels])
        (result,) = self.moderate("you!", answer, model="toxic").json()["results"]
        self.assertEqual((result["flagged"], result["category_scores"]), (True, {"insult": 0.8}))

    def test_more_texts_than_a_batch_are_one_job(self) -> None:
        texts = ["x" * count for count in range(10)]
        results = self.moderate(texts, model="toxic").json()["results"]
        self.assertEqual([each["flagged"] for each in results], [count >= 5 for count in range(10)])
        self.assertEqual(Job.objects.filter(whole=None).count(), 1)

    def test_the_model_is_listed_for_openai_s_clients(self) -> None:
        for path in ("/openai/v1/models", "/v1/models"):
            self.assertEqual([each["id"] for each in self.client.get(path).json()["data"]], ["toxic", "strict"])
        self.assertEqual(self.client.get("/openai/v1/models/toxic").status_code, 200)
        refused = self.client.get("/openai/v1/models/sentiment")
        self.assertEqual((refused.status_code, refused.json()["error"]["code"]), (404, "model_not_found"))

    def test_errors_are_openai_s(self) -> None:
        for fields, status, param in (
            ({"input": [], "model": "toxic"}, 400, "input"),
            ({"input": "a", "model": "sentiment"}, 400, "model"),
            ({"input": "a", "model": "nope"}, 404, None),
            ({"input": "a", "model": "toxic"}, 503, None),  # nobody serves it
        ):
            answer = self.post(ADDRESSES[0], fields)
            self.assertEqual((answer.status_code, answer.json()["error"]["param"]), (status, param))
        refused = self.moderate("a", functools.partial(answering, InvalidInput("inputs: no.")), model="toxic")
        self.assertEqual((refused.status_code, refused.json()["error"]["message"]), (400, "input: no."))

    def test_an_engine_that_gives_something_else_is_at_fault(self) -> None:
        response = self.moderate("a", functools.partial(answering, [{"label": "insult"}]), model="toxic")
        self.assertEqual((response.status_code, response.json()["error"]["code"]), (502, "bad_output"))
