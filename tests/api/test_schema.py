import functools
import json
import operator
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
from django.contrib.staticfiles import finders
from django.test import RequestFactory
from django.urls.resolvers import RoutePattern
from drf_spectacular.validation import validate_schema

from api import urls
from api.errors import cohere_tei, openai, problems
from api.openapi import operation_decorator
from api.views.file_batches.files import FIELDS
from tests.api.base import ApiTestCase

NOT_DESCRIBED = ("/v1/schema", "/v1/docs", "/models")


class SchemaTests(ApiTestCase):
    def document(self) -> dict[str, Any]:
        answer = self.client.get("/v1/schema")
        self.assertEqual(answer["Content-Type"], "application/vnd.oai.openapi+json")
        document: dict[str, Any] = json.loads(answer.content)
        return document

    def test_the_document_is_valid_openapi_3_1(self) -> None:
        document = self.document()
        self.assertEqual(document["openapi"], "3.1.0")
        validate_schema(document)

    def test_it_lists_the_models_of_now(self) -> None:
        names = ("schemas", "JobBody", "properties", "model", "enum")
        listed = functools.reduce(operator.getitem, names, self.document()["components"])
        self.assertEqual(listed, ["echo", "pictures", "vectors"])
        with tempfile.NamedTemporaryFile("w") as file, self.settings(MODELS_FILE=Path(file.name)):
            file.write('[other]\nengine = "x:Y"\n')
            file.flush()
            listed = functools.reduce(operator.getitem, names, self.document()["components"])
        self.assertEqual(listed, ["other"])

    def test_every_operation_has_a_summary_its_errors_and_the_request_id(self) -> None:
        for path, operations in self.document()["paths"].items():
            for method, operation in operations.items():
                with self.subTest(f"{method} {path}"):
                    self.assertTrue(operation["summary"])
                    for status, response in operation["responses"].items():
                        self.assertIn("X-Request-Id", response["headers"])
                        if int(status) >= 400:
                            media_type, name = form_of(path)
                            content = response["content"][media_type]
                            self.assertEqual(content["schema"], {"$ref": f"#/components/schemas/{name}"})

    def test_statuses_are_those_of_each_dialect(self) -> None:
        paths = self.document()["paths"]
        for path, known, unknown in (
            ("/v1/embeddings", {"400", "502"}, {"422", "424"}),
            ("/v2/embed", {"422", "502"}, {"424"}),
            ("/v1/rerank", {"422", "502"}, {"424"}),
            ("/rerank", {"413", "422", "424", "429"}, {"502"}),
            ("/predict", {"413", "422", "424", "429"}, {"502"}),
        ):
            with self.subTest(path):
                responses = paths[path]["post"]["responses"]
                self.assertLessEqual(known, responses.keys())
                self.assertFalse(unknown & responses.keys())
        full = paths["/embed"]["post"]["responses"]["429"]
        self.assertIn("queue_full", full["description"])
        self.assertIn("Retry-After", full["headers"])

    def test_every_address_is_described_or_named_by_an_operation(self) -> None:
        paths = self.document()["paths"]
        descriptions = " ".join(operation["description"] for each in paths.values() for operation in each.values())
        for pattern in urls.urlpatterns:
            path = "/" + re.sub(r"<str:(\w+)>", r"{\1}", str(pattern.pattern))
            if not isinstance(pattern.pattern, RoutePattern) or path in NOT_DESCRIBED:
                continue
            with self.subTest(path):
                self.assertTrue(path in paths or f"`{path}`" in descriptions)

    def test_every_array_says_what_it_holds_and_every_reference_leads_somewhere(self) -> None:
        document = self.document()
        for path, node in nodes(document):
            with self.subTest(path):
                if "array" in node.get("type", ()):
                    self.assertIn("items", node)
                if "$ref" in node:
                    found = document
                    for name in node["$ref"].removeprefix("#/").split("/"):
                        found = found[name]

    def test_unknown_fields_are_refused_in_the_document_too(self) -> None:
        schemas = self.document()["components"]["schemas"]
        self.assertIs(schemas["JobBody"]["additionalProperties"], False)

    def test_bodies_that_are_served_are_valid_in_the_document_too(self) -> None:
        document = self.document()
        chat: dict[str, Any] = {"model": "echo", "messages": [{"role": "user", "content": "a"}]}
        text: dict[str, Any] = {"model": "echo", "prompt": "a"}
        scaled = {"frequency_penalty": -2, "presence_penalty": 2, "repetition_penalty": 1.1, "logit_bias": {"1": -100}}
        both = {
            **scaled, "n": 2, "min_p": 0.1, "min_tokens": 1, "ignore_eos": True, "stop": "a", "service_tier": "flex",
            "stream_options": {"include_usage": True}, "max_completion_tokens": 5,
        }  # fmt: skip
        scores = {"logprobs": True, "top_logprobs": 20}
        turn = {"continue_final_message": True, "add_generation_prompt": False}
        parts = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
        response: dict[str, Any] = {"model": "echo", "input": "a"}
        for name, body, is_valid in (
            ("ChatBody", {**chat, **both, **scores, **turn, "parallel_tool_calls": False}, True),
            ("ChatBody", {**chat, "messages": parts, "stop": ["a", "b"]}, True),
            ("ModelChatBody", {"messages": parts, **both}, True),
            ("ChatBody", {**chat, "messages": [{"role": "assistant"}]}, True),
            ("ChatBody", {"messages": parts}, False),
            ("ChatBody", {**chat, "max_tokens": 0}, False),
            ("ChatBody", {**chat, "stream_options": {"include_usage": 1}}, False),
            ("TextBody", {**text, **both, "echo": True, "logprobs": 5, "max_tokens": 0}, True),
            ("ModelTextBody", {"prompt": [[1, 2], "a"], **both}, True),
            ("TextBody", {**text, "logprobs": 21}, False),
            ("TextBody", {**text, "n": 0}, False),
            ("TextBody", {**text, "frequency_penalty": 3}, False),
            ("ResponseBody", {**response, "parallel_tool_calls": True, "service_tier": "flex"}, True),
            ("ResponseBody", {**response, "input": parts}, True),
            ("ModerationBody", {"input": parts[0]["content"]}, True),
            ("ModerationBody", {"input": [5]}, False),
            ("SpeechBody", {"model": "m", "input": "a", "voice": "alloy", "service_tier": "flex"}, True),
            ("ResponseBody", {**response, "input": 5}, False),
        ):
            with self.subTest(name, body=body):
                schema = {**document["components"]["schemas"][name], "components": document["components"]}
                self.assertEqual(jsonschema_rs.is_valid(schema, body), is_valid)
                known = schema["properties"].keys()
                self.assertFalse(is_valid and body.keys() - known)

    def test_a_file_of_a_form_is_bytes(self) -> None:
        schemas = self.document()["components"]["schemas"]
        for name, fields in (
            ("FileBody", {"file", *FIELDS}),
            ("TranscriptionBody", {"file", "model", "language", "response_format"}),
        ):
            with self.subTest(name):
                properties = schemas[name]["properties"]
                self.assertEqual((properties["file"]["type"], properties["file"]["format"]), ("string", "binary"))
                self.assertEqual(properties.keys(), fields)

    def test_null_is_not_given_in_the_document_too(self) -> None:
        schemas = self.document()["components"]["schemas"]
        for name in operation_decorator.BODIES:
            for field, shape in schemas[name]["properties"].items():
                with self.subTest(f"{name}.{field}"):
                    kinds = [*shape.get("type", ()), *(kind.get("type") for kind in shape.get("oneOf", ()))]
                    self.assertEqual("null" in kinds, field not in schemas[name]["required"])

    def test_every_code_is_explained_at_its_type(self) -> None:
        for code, (status, title) in problems.TABLE.items():
            with self.subTest(code):
                shown = self.client.get(problems.TYPE_PREFIX + code).json()
                self.assertEqual((shown["code"], shown["status"], shown["title"]), (code, status, title))
                self.assertNotIn(shown["what_to_do"].rstrip("."), ("", title))
        self.assert_problem(self.client.get("/v1/problems/nope"), 404, "not_found")


def form_of(path: str) -> tuple[str, str]:
    """Return the media type, and the component, of the problems of an address."""
    request = RequestFactory().get(path)
    if openai.is_client_request(request):
        return "application/json", "OpenAIProblemShown"
    if cohere_tei.is_client_request(request):
        return "application/json", "RetrievalProblemShown"
    return "application/json" if problems.COMPLETING.match(path) else problems.CONTENT_TYPE, "ProblemShown"


def nodes(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of a JSON document, with where it is."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if isinstance(value, dict):
        yield path, value
    for name, child in children:
        yield from nodes(child, f"{path}/{name}")


class DocsTests(ApiTestCase):
    def test_the_page_fetches_nothing_from_elsewhere(self) -> None:
        page = self.client.get("/v1/docs").content.decode()
        addresses = re.findall(r'(?:src|href|data-schema)="([^"]+)"', page)
        self.assertIn("/v1/schema", addresses)
        for address in addresses:
            with self.subTest(address):
                self.assertTrue(address.startswith("/"))
                if address.startswith("/static/"):
                    self.assertIsNotNone(finders.find(address.removeprefix("/static/")))


class MetricsTests(ApiTestCase):
    def test_figures_are_in_prometheus_s_format(self) -> None:
        self.idle_worker()
        self.submit()
        answer = self.client.get("/metrics")
        self.assertTrue(answer["Content-Type"].startswith("text/plain"))
        lines = answer.content.decode().splitlines()
        self.assertIn('inference_jobs_waiting{model="echo",status="queued"} 1.0', lines)
        self.assertIn('inference_workers{state="ready"} 1.0', lines)
