"""Requests for vectors of texts at OpenAI's addresses become jobs, and these become answers in its form."""

from __future__ import annotations

import base64
import copy
import dataclasses
import functools
import math
import struct
from pathlib import Path
from typing import Any
from unittest.mock import patch

from django.test import SimpleTestCase, override_settings

from api.requests.dialects import embeddings
from inference.catalog.lookup import get_spec
from inference.errors import InvalidInput, UnknownModel
from inference.models import Job, Status
from inference.submission import jobs
from inference.submission.submissions import Submission
from tests.api.base import ApiTestCase
from tests.api.test_completions import answering

MODELS_FILE = Path(__file__).with_name("embedding.toml")
ADDRESSES = ("/openai/v1/embeddings", "/v1/embeddings", "/v1/models/vectors/v1/embeddings")
OWN = {"encoding_format": "base64", "details": True}


def vector_of(text: str) -> list[float]:
    return [len(text), 0.5, -2.0]


def encoded(text: str) -> str:
    return base64.b64encode(struct.pack("<3f", *vector_of(text))).decode()


def embed(value: Any, parameters: dict[str, Any]) -> Any:
    """Answer as the engine does what the address asks of it."""
    if isinstance(value, list):
        return [embed(each, parameters) for each in value]
    return {"embedding": encoded(value), "tokens": 2 + len(value.split())}


@override_settings(MODELS_FILE=MODELS_FILE)
class ReadTests(SimpleTestCase):
    """Each field becomes a part of a job, or is refused."""

    def refused(self, document: Any) -> InvalidInput:
        with self.assertRaises(InvalidInput) as caught:
            embeddings.read_embedding_request(document)
        return caught.exception

    def test_fields_become_a_job_that_shares_its_batch_whatever_form_is_requested(self) -> None:
        for fields, is_base64, parameters in (
            ({}, False, OWN),
            ({"encoding_format": "float"}, False, OWN),
            ({"encoding_format": "base64"}, True, OWN),
            ({"dimensions": 64}, False, {**OWN, "dimensions": 64}),
            ({"dimensions": 0, "encoding_format": None, "user": "u", "modality": "text", "n": 1}, False, OWN),
            ({"dimensions": None, "stream": False}, False, OWN),
            ({"output_dimension": 64}, False, {**OWN, "dimensions": 64}),
            ({"embedding_types": ["float"], "truncate": "END", "priority": 0}, False, OWN),
            ({"dimensions": ""}, False, {**OWN, "dimensions": ""}),  # which is refused as what it is
        ):
            for given, texts in (("a", ["a"]), ("", [""]), (["a", "b"], ["a", "b"])):
                with self.subTest(fields, given=given):
                    request = embeddings.read_embedding_request({"model": "vectors", "input": given, **fields})
                    self.assertEqual((request.submission.inputs, request.submission.parameters), (texts, parameters))
                    self.assertEqual((request.submission.spec.name, request.is_base64), ("vectors", is_base64))

    def test_only_a_model_that_takes_the_parameters_of_the_request_gives_vectors(self) -> None:
        vectors = get_spec("vectors")
        self.assertTrue(vectors.embeds)
        floats = dataclasses.replace(vectors.parameters["encoding_format"], choices=("float",))
        other = dataclasses.replace(vectors, parameters={**vectors.parameters, "encoding_format": floats})
        self.assertFalse(other.embeds)

    def test_the_address_may_name_the_model_and_the_body_no_other_one(self) -> None:
        for name in ("nope", "vectors"):
            request = embeddings.read_embedding_request({"input": "a", "model": name}, get_spec("vectors"))
            self.assertEqual(request.submission.spec.name, "vectors")
        with self.assertRaisesRegex(InvalidInput, "the address names 'vectors', and the body 'words'"):
            embeddings.read_embedding_request({"input": "a", "model": "words"}, get_spec("vectors"))

    def test_what_cannot_be_served_is_refused_with_the_field_and_what_would_be_right(self) -> None:
        for fields, field, words in (
            ({"input": [1, 2]}, "input", "check_embedding_ctx_length=False"),
            ({"input": [[1, 2], [3]]}, "input", "send texts"),
            ({"input": 3}, "input", "send texts"),
            ({"input": [True]}, "input", "must be a text"),
            ({"input": [["a"]]}, "input", "must be a text"),
            ({"input": []}, "input", "a list of one text or more"),
            ({"input": None}, "input", "must be a text"),
            ({"input": {"text": "a"}}, "input", "must be a text"),
            ({"input": ["a", {"text": "a"}]}, "input[1]", "must be a text"),
            ({"input": ["a", None]}, "input[1]", "must be a text"),
            ({"encoding_format": "hex"}, "encoding_format", "must be one of float, base64"),
            ({"encoding_format": ["float"]}, "encoding_format", "must be one of float, base64"),
            ({"inputs": "a"}, "inputs", "unknown field; did you mean input?"),
            ({"n": 2}, "n", "is not served here; leave it out, or send 1"),
            ({"modality": "image"}, "modality", 'or send "text"'),
            ({"model": 3}, "model", "must be a name of GET /v1/models"),
            ({"model": "pictures"}, "model", "'pictures' gives no vectors of texts: post to /v1/models/pictures"),
        ):
            with self.subTest(fields):
                error = self.refused({"model": "vectors", "input": "a", **fields})
                self.assertEqual(error.field, field)
                self.assertIn(words, error.message)

    def test_who_names_no_model_has_the_one_that_gives_vectors(self) -> None:
        for fields in ({}, {"model": "default/not-specified"}):
            self.assertEqual(
                embeddings.read_embedding_request({"input": "a", **fields}).submission.spec.name, "vectors"
            )
        self.assertIn("must be a JSON object", self.refused([]).message)
        request = embeddings.read_embedding_request({"model": "vectors", "input": ["a"]})
        later = "inputs[1]: parameters.dimensions: vectors of this model have 384 numbers"
        self.assertEqual(
            request.translate_field_names(later), "input[1]: dimensions: vectors of this model have 384 numbers"
        )
        self.assertEqual(
            request.translate_field_names("The model failed: parameters.x"), "The model failed: parameters.x"
        )
        alone = embeddings.read_embedding_request({"model": "vectors", "input": "a"})
        self.assertEqual(
            alone.translate_field_names("inputs[0]: parameters.dimensions: is wrong"), "dimensions: is wrong"
        )
        with self.assertRaises(UnknownModel):
            embeddings.read_embedding_request({"model": "nope", "input": "a"})


@override_settings(MODELS_FILE=MODELS_FILE)
class AnswerTests(ApiTestCase):
    """The worker is played by the test."""

    def embed_texts(self, path: str, value: Any = embed, **fields: Any) -> Any:
        with self.worker(value):
            return self.post(path, {"model": "vectors", "input": ["a cat", "b"], **fields})

    def test_vectors_come_in_order_with_the_tokens_of_all(self) -> None:
        for path in ADDRESSES:
            for fields, vectors in (
                ({}, [vector_of("a cat"), vector_of("b")]),
                ({"encoding_format": "base64"}, [encoded("a cat"), encoded("b")]),
            ):
                with self.subTest(path, **fields):
                    answer = self.embed_texts(path, **fields)
                    self.assertEqual(
                        answer.json(),
                        {
                            "object": "list",
                            "model": "vectors",
                            "usage": {"prompt_tokens": 7, "total_tokens": 7},
                            "data": [
                                {"object": "embedding", "index": index, "embedding": vector}
                                for index, vector in enumerate(vectors)
                            ],
                        },
                    )
                    job = Job.objects.latest("created_at")
                    self.assertEqual(answer["Content-Location"], f"/v1/jobs/{job.id}/output")
                    self.assertEqual(job.size, 2)

    def test_a_large_answer_is_sent_in_pieces_and_with_its_length(self) -> None:
        whole = self.embed_texts(ADDRESSES[0]).content
        with patch("api.views.models.PIECE", 10):
            answer = self.embed_texts(ADDRESSES[0])
            pieces = list(answer.streaming_content)
        self.assertEqual((b"".join(pieces), answer["Content-Length"]), (whole, str(len(whole))))
        self.assertLessEqual(max(map(len, pieces)), 10)

    def test_a_text_is_a_list_of_one(self) -> None:
        (entry,) = self.embed_texts(ADDRESSES[0], input="a cat").json()["data"]
        self.assertEqual(entry["embedding"], vector_of("a cat"))

    def test_problems_have_openai_s_shape_and_the_client_s_words(self) -> None:
        for path in ADDRESSES:
            problems: list[tuple[dict[str, Any], int, str | None]] = [
                ({"dimensions": False}, 400, "dimensions"),
                ({"dimensions": []}, 400, "dimensions"),
                ({"dimensions": "many"}, 400, "dimensions"),
                ({"dimensions": -1}, 400, "dimensions"),
                ({"output_dimension": -1}, 400, "output_dimension"),
                ({"input": []}, 400, "input"),
                ({"input": [[1] * 400] * 1000}, 413, None),
                *([({"model": "nope"}, 404, None)] if path in ADDRESSES[:2] else []),
            ]
            for fields, status, param in problems:
                with self.subTest(path, **{name: str(value)[:9] for name, value in fields.items()}):
                    answer = self.post(path, {"model": "vectors", "input": ["a"], **fields})
                    error = answer.json()["error"]
                    self.assertEqual((answer.status_code, error["param"]), (status, param))
                    if status == 413:
                        self.assertIn("check_embedding_ctx_length=False", error["message"])

    def test_a_later_failure_is_described_in_the_client_s_words_too(self) -> None:
        failed = jobs.submit(Submission(spec=get_spec("vectors"), inputs=["a", "b"]))
        failed.status, failed.error_code = Status.FAILED, InvalidInput.code
        failed.error_detail = "inputs[1]: is no text of ours."
        for path in ADDRESSES:
            with patch("api.views.models.run_job_within_timeout", return_value=copy.copy(failed)):
                answer = self.post(path, {"model": "vectors", "input": ["a", "b"]})
            error = (answer.status_code, answer.json()["error"]["message"])
            self.assertEqual(error, (400, "input[1]: is no text of ours."))
            self.assertEqual(answer.json()["error"]["job_id"], str(failed.id))  # by which its operator finds it

    def test_an_engine_that_gives_no_vectors_is_at_fault(self) -> None:
        good = embed("a", {})
        infinite = base64.b64encode(struct.pack("<f", math.inf)).decode()
        wrong: list[Any] = [0.5, {**good, "embedding": "abc"}, {**good, "embedding": "AAAA"}, {**good, "tokens": -3}]
        wrong += [{**good, "embedding": infinite}, {**good, "embedding": "éé=="}, {**good, "tokens": True}]
        for answer in ([0.5], [good], [good] * 3, *([good, bad] for bad in wrong)):
            for encoding in ("float", "base64"):
                with self.subTest(answer=str(answer)[-60:], encoding=encoding):
                    response = self.embed_texts(
                        ADDRESSES[0], functools.partial(answering, answer), encoding_format=encoding
                    )
                    self.assertEqual((response.status_code, response.json()["error"]["code"]), (502, "bad_output"))

    def test_models_that_give_vectors_are_listed_for_openai_s_clients_at_both_addresses(self) -> None:
        own = {"object": "model", "created": 0, "owned_by": "inference"}
        expected = [
            {"id": "vectors", "task": "feature-extraction", **own}, {"id": "words", "task": "text-generation", **own}
        ]  # fmt: skip
        for path in ("/openai/v1/models", "/v1/models"):
            models = self.client.get(path).json()
            self.assertEqual((models["object"], models["data"]), ("list", expected))
        self.assertEqual(self.client.get("/openai/v1/models/vectors").json(), expected[0])
        model = self.client.get("/v1/models/vectors").json()
        self.assertEqual({name: model[name] for name in expected[0]}, expected[0])
        self.assertEqual(self.client.get("/openai/v1/models/pictures").status_code, 404)

    def test_chats_and_completions_are_answered_below_v1_too(self) -> None:
        def generate(value: Any, parameters: dict[str, Any]) -> Any:
            return [{"generated_text": "hi"}]

        for path, fields in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
            ("/v1/completions", {"prompt": "hello"}),
        ):
            with self.subTest(path), self.worker(generate):
                self.assertEqual(self.post(path, {"model": "words", **fields}).status_code, 200)
                completion = self.post(path, {"model": "words", **fields}).json()
                self.assertEqual(self.client.get(f"{path}/{completion['id']}").json(), completion)
                refused = self.post(path, {"model": "words", **fields, "n": 0})
                self.assertEqual((refused.status_code, refused.json()["error"]["param"]), (400, "n"))
