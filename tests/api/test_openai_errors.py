"""Below /openai/ whatever goes wrong is told in OpenAI's shape, with what makes its clients send it again, or not."""

from __future__ import annotations

import functools
import json
from typing import Any
from unittest.mock import patch

from django.contrib.auth import get_user_model
from django.db import OperationalError
from django.test import override_settings

from api.models import ApiKey
from inference.catalog.lookup import get_spec
from inference.errors import UNREADABLE, InferenceError, InvalidInput, Lost, OutOfMemory, make_context_length_error
from inference.models import Job
from inference.submission import jobs
from inference.submission.submissions import Submission
from inference.values.priority import Priority
from tests.api.base import ApiTestCase, Response
from tests.api.test_completions import CHAT, HELLO, MODELS, MODELS_FILE, TEXT, answering, generated

TOO_LONG = r"Input tokens exceed the configured limit of \d+ tokens\. Your messages resulted in \d+ tokens"
BODY = {"model": "prompts", "messages": HELLO}


@override_settings(MODELS_FILE=MODELS_FILE)
class ErrorTests(ApiTestCase):
    def assert_error(
        self, answer: Response, status: int, code: str, kind: str = "invalid_request_error", param: str | None = None
    ) -> str:
        self.assertEqual(answer.status_code, status, answer.content)
        self.assertEqual(answer["Content-Type"], "application/json")
        self.assertTrue(answer["X-Request-Id"])
        document = answer.json()
        self.assertEqual(document.keys(), {"error"})
        message, _ = document["error"].pop("message"), document["error"].pop("job_id", None)
        self.assertEqual(document["error"], {"type": kind, "param": param, "code": code})
        return str(message)

    def again(self, answer: Response) -> str | None:
        return answer.headers.get("X-Should-Retry")

    def failing(self, error: InferenceError, **headers: str) -> Response:
        with self.worker(lambda value, parameters: error):
            return self.post(CHAT, BODY, headers=headers)

    def test_addresses_and_methods(self) -> None:
        self.assert_error(self.client.get("/openai/v1/nope"), 404, "not_found")
        self.assert_error(self.client.get("/openai/"), 404, "not_found")
        wrong = self.client.get(CHAT)
        self.assert_error(wrong, 405, "method_not_allowed")
        self.assertIn("POST", wrong["Allow"])
        self.assert_problem(self.client.get("/openaiv1"), 404, "not_found")

    def test_openai_s_own_package_reads_them_at_every_address(self) -> None:
        headers = {"X-Stainless-Lang": "python"}
        for path, code in (("/v1/models/nope", "model_not_found"), ("/v1/vector_stores", "not_found")):
            self.assert_error(self.client.get(path, headers=headers), 404, code)
            self.assert_problem(self.client.get(path), 404, "unknown_model" if "models" in path else "not_found")
        for path in ("/nope", "/api/v1/embeddings"):  # whose length Django's middleware for pages has counted
            answer = self.client.get(path, headers=headers)
            self.assert_error(answer, 404, "not_found")
            self.assertEqual(answer["Content-Length"], str(len(answer.content)))
        wrong = self.post("/v1/models/prompts/v1/chat/completions", {**BODY, "n": 0}, headers=headers)
        self.assert_error(wrong, 400, "invalid_input", param="n")

    def test_models(self) -> None:
        self.assert_error(self.client.get(f"{MODELS}/nope"), 404, "model_not_found")
        self.assert_error(self.client.get(f"{MODELS}/pictures"), 404, "model_not_found")
        self.assert_error(self.post(CHAT, {**BODY, "model": "nope"}), 404, "model_not_found")
        self.assert_error(self.post(CHAT, {**BODY, "model": "pictures"}), 400, "invalid_input", param="model")

    def test_bodies(self) -> None:
        self.assert_error(self.post(CHAT, b"{"), 400, "invalid_json")
        self.assert_error(self.post(CHAT, b"x", content_type="text/plain"), 415, "unsupported_media_type")
        with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=10):
            self.assert_error(self.post(CHAT, BODY), 413, "body_too_large")
        self.assert_error(self.post(f"{CHAT}?wait=3", BODY), 400, "bad_request", param="wait")
        foreign = self.post(CHAT, BODY, headers={"Host": "evil.example"})
        self.assert_error(foreign, 400, "bad_request")

    def test_parameters_of_the_query_are_named(self) -> None:
        job = jobs.submit(Submission(spec=get_spec("prompts"), inputs="x"))
        for address, param in (
            (f"{CHAT}/chatcmpl-{job.id}?timeout=x", "timeout"),
            (f"{CHAT}/chatcmpl-{job.id}?stream=x", "stream"),
            (f"{CHAT}/chatcmpl-{job.id}?stream=true&timeout=1", "timeout"),
            (f"{CHAT}/chatcmpl-{job.id}?stream=true&on_disconnect=x", "on_disconnect"),
            ("/v1/files?limit=0", "limit"),
            ("/v1/files?order=x", "order"),
            ("/v1/files?after=x", "after"),
            ("/v1/files?purpose=x", "purpose"),
        ):
            with self.subTest(address):
                self.assert_error(self.client.get(address), 400, "bad_request", param=param)

    def test_fields_are_named_as_the_client_named_them(self) -> None:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"max_tokens": 0}, "max_tokens"),
            ({"max_completion_tokens": -5}, "max_completion_tokens"),
            ({"temperature": 1000}, "temperature"),
            ({"temperature": "hot"}, "temperature"),
            ({"temperature": False}, "temperature"),
            ({"top_p": 2}, "top_p"),
            ({"temperature": 0, "top_p": 2}, "top_p"),
            ({"temperature": 0, "top_k": "x"}, "top_k"),
            ({"style": "odd"}, "style"),
        ]
        with self.worker(generated):
            for fields, field in wrong:
                with self.subTest(fields):
                    answer = self.post(CHAT, {**BODY, **fields})
                    message = self.assert_error(answer, 400, "invalid_input", param=field)
                    self.assertTrue(message.startswith(f"{field}: "), message)
        self.assertEqual(Job.objects.count(), 0)

    def test_a_prompt_that_is_surely_too_long_is_refused_as_openai_s_clients_know_it(self) -> None:
        long = "word " * 500
        for path, param, fields in (
            (CHAT, "messages", {"messages": [{"role": "user", "content": long}]}), (TEXT, "prompt", {"prompt": long}),
        ):  # fmt: skip
            answer = self.post(path, {"model": "prompts", **fields})
            message = self.assert_error(answer, 400, "context_length_exceeded", param=param)
            self.assertRegex(message, TOO_LONG)
        self.assertEqual(Job.objects.count(), 0)

    def test_so_is_one_that_only_its_tokens_show_to_be(self) -> None:
        error = make_context_length_error(8192, 9031)
        with self.worker(lambda value, parameters: error):
            for path, param, fields in ((CHAT, "messages", {"messages": HELLO}), (TEXT, "prompt", {"prompt": "x"})):
                answer = self.post(path, {"model": "prompts", **fields})
                message = self.assert_error(answer, 400, "context_length_exceeded", param=param)
                self.assertRegex(message, TOO_LONG)
                self.assertEqual(self.again(answer), "false")
                streamed = self.post(path, {"model": "prompts", "stream": True, **fields}).getvalue().decode()
                error_object = json.loads(streamed.strip().splitlines()[-1].removeprefix("data: "))["error"]
                self.assertEqual((error_object["code"], error_object["param"]), ("context_length_exceeded", param))
                self.assertRegex(error_object["message"], TOO_LONG)

    @override_settings(API_KEY_REQUIRED=True)
    def test_keys(self) -> None:
        nobody = self.post(CHAT, BODY)
        self.assert_error(nobody, 401, "invalid_api_key")
        self.assertIn("Bearer", nobody["WWW-Authenticate"])
        user = get_user_model().objects.create_user("user")
        _, key = ApiKey.objects.issue_key(owner=user, requests_per_minute=1, max_queued=1)
        headers = {"Authorization": f"Bearer {key}"}
        self.assertEqual(self.client.get(MODELS, headers=headers).status_code, 200)
        limited = self.post(CHAT, BODY, headers=headers)
        self.assert_error(limited, 429, "rate_limit_exceeded", "rate_limit_error")
        self.assertIn("Retry-After", limited)

    def test_room(self) -> None:
        self.assert_error(self.post(CHAT, BODY), 503, "no_worker", "server_error")
        self.idle_worker()
        for _ in range(2):
            jobs.submit(Submission(spec=get_spec("prompts"), inputs="x", priority=Priority.NORMAL))
        full = self.post(CHAT, BODY)
        self.assert_error(full, 503, "queue_full", "server_error")
        self.assertIn("Retry-After", full)
        self.assertIsNone(self.again(full))  # as its status says: nothing was stored

    def test_a_wait_that_is_over_is_not_retried_without_a_key(self) -> None:
        self.idle_worker()
        over = self.post(f"{CHAT}?timeout=0.01", BODY)
        message = self.assert_error(over, 504, "not_finished", "server_error")
        self.assertIn(over["Location"], message)
        self.assertEqual((self.again(over), Job.objects.count()), ("false", 1))
        with_key = self.post(f"{CHAT}?timeout=0.01", BODY, headers={"Idempotency-Key": "a"})
        self.assertEqual(self.again(with_key), "true")
        with self.worker(generated):
            self.assertEqual(self.post(CHAT, BODY, headers={"Idempotency-Key": "a"}).status_code, 200)
        self.assertEqual(Job.objects.count(), 2)

    def test_jobs_without_an_answer(self) -> None:
        bad = self.failing(InvalidInput("inputs: 200 tokens, where at most 50 fit."))
        message = self.assert_error(bad, 400, "invalid_input", param="messages")
        self.assertEqual(message, "messages: 200 tokens, where at most 50 fit.")
        self.assertEqual(self.again(bad), "false")
        biased = self.failing(InvalidInput("parameters.logit_bias.a: must be a number."))
        self.assert_error(biased, 400, "invalid_input", param="logit_bias.a")
        for said, param in (("The text is empty: send a word.", "messages"), (UNREADABLE, None)):
            self.assert_error(self.failing(InvalidInput(said)), 400, "invalid_input", param=param)
        self.assert_error(self.failing(OutOfMemory("It does not fit.")), 400, "out_of_memory")
        lost = self.failing(Lost("Its worker was lost."))
        self.assert_error(lost, 502, "lost", "server_error")
        self.assertEqual(self.again(lost), "true")
        keyed = self.failing(Lost("Its worker was lost."), **{"Idempotency-Key": "a"})
        self.assertEqual(self.again(keyed), "false")  # the same job has the same end

    def test_an_answer_that_is_no_text(self) -> None:
        for wrong in ({"echo": "x"}, [], [{"generated_text": 7}]):
            with self.subTest(wrong), self.worker(functools.partial(answering, wrong)):
                self.assert_error(self.post(CHAT, BODY), 502, "bad_output", "server_error")

    def test_keys_of_idempotency(self) -> None:
        with self.worker(generated):
            self.post(CHAT, BODY, headers={"Idempotency-Key": "a"})
            other = self.post(CHAT, {**BODY, "max_tokens": 3}, headers={"Idempotency-Key": "a"})
        self.assert_error(other, 400, "idempotency_mismatch")

    def test_the_service_s_own_failures(self) -> None:
        with patch.object(jobs, "run", side_effect=OperationalError("server closed")):
            away = self.post(CHAT, BODY)
        self.assert_error(away, 503, "store_unavailable", "server_error")
        with (
            patch.object(jobs, "run", side_effect=RuntimeError("secret")),
            self.assertLogs("api.errors.problems", "ERROR"),
        ):
            self.assertNotIn("secret", self.assert_error(self.post(CHAT, BODY), 500, "internal", "server_error"))

    def test_the_same_calls_elsewhere_answer_problems(self) -> None:
        path = "/v1/models/prompts/v1/chat/completions"
        with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=10):
            large = self.post(path, BODY)
        self.assertEqual((large.status_code, large["Content-Type"]), (413, "application/json"))
        answer = self.post(path, {"messages": HELLO, "max_tokens": 0})
        self.assertEqual((answer.status_code, answer["Content-Type"]), (422, "application/json"))
        self.assertEqual(answer.json()["code"], "invalid_input")
        self.assertEqual(answer.json()["errors"][0]["field"], "max_tokens")
