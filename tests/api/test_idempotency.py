import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client, override_settings

from api.answers.events import CONTENT_TYPE
from api.models import ApiKey
from inference import process_resources
from inference.models import Job, Status
from tests.api import test_completions, test_tei
from tests.api.base import Answer, ApiTestCase, Response
from tests.api.test_completions import CHAT, HELLO, generated
from tests.api.test_embeddings import embed, encoded, vector_of
from tests.api.test_rerank import score, sigmoid
from tests.conditions import eventually

BODY = {"model": "echo", "inputs": {"b": 1, "a": [1.5, "x"]}, "parameters": {"top_k": 3}}


class IdempotencyTests(ApiTestCase):
    def send(self, key: str, body: dict[str, Any] | None = None, **headers: str) -> Response:
        return self.post("/v1/jobs", body or BODY, headers={"Idempotency-Key": key, **headers})

    def test_the_same_key_and_body_is_the_same_job(self) -> None:
        first, second = self.send("k1"), self.send("k1", dict(reversed(BODY.items())))
        self.assertEqual((first.status_code, second.status_code), (202, 202))
        self.assertEqual(first.json()["id"], second.json()["id"])
        self.assertEqual(Job.objects.count(), 1)

    def test_another_body_is_refused(self) -> None:
        self.send("k1")
        changes: list[dict[str, Any]] = [{"inputs": "y"}, {"parameters": {}}, {"priority": "low"}, {"expires_in": 5}]
        for change in changes:
            with self.subTest(change):
                self.assert_problem(self.send("k1", {**BODY, **change}), 422, "idempotency_mismatch")

    def test_the_key_holds_for_the_blocking_call_too(self) -> None:
        with self.worker():
            answers = [
                self.post("/v1/models/echo", {"inputs": "x"}, headers={"Idempotency-Key": "k1"}) for _ in range(2)
            ]
        self.assertEqual(answers[0].json(), answers[1].json())
        self.assertEqual(Job.objects.count(), 1)

    def test_a_known_key_is_answered_when_the_queue_is_full(self) -> None:
        job = self.send("k1").json()
        Job.objects.bulk_create(Job(model="echo", inputs="x") for _ in range(20))
        process_resources.current.queue_counters.clear()
        self.assert_problem(self.send("k2"), 503, "queue_full")
        self.assertEqual(self.send("k1").json()["id"], job["id"])

    def test_everybody_has_keys_of_their_own(self) -> None:
        keys = [
            ApiKey.objects.issue_key(owner=get_user_model().objects.create_user(name))[1] for name in ("ada", "bob")
        ]
        ids = {self.send("k1", Authorization=f"Bearer {key}").json()["id"] for key in keys}
        self.assertEqual(len(ids), 2)

    def test_running_a_job_again_is_another_request(self) -> None:
        jobs = [self.send(key).json()["id"] for key in ("k1", "k2")]
        Job.objects.update(status=Status.FAILED)
        again = [f"/v1/jobs/{job}/retry" for job in jobs]
        self.assert_problem(self.post(again[0], headers={"Idempotency-Key": "k1"}), 422, "idempotency_mismatch")
        retried = {self.post(again[0], headers={"Idempotency-Key": "k3"}).json()["id"] for _ in range(2)}
        self.assertEqual((len(retried), Job.objects.count()), (1, 3))
        self.assert_problem(self.post(again[1], headers={"Idempotency-Key": "k3"}), 422, "idempotency_mismatch")

    def test_a_key_must_be_visible_characters(self) -> None:
        for key in ("", "a b", "é", "x" * 256):
            with self.subTest(key):
                self.assert_problem(self.send(key), 400, "bad_request")

    def test_fifty_clients_with_one_key_make_one_job(self) -> None:
        for _ in range(10):
            key, barrier = uuid4().hex, threading.Barrier(50)
            with ThreadPoolExecutor(50) as clients:
                answers = list(clients.map(self.submit_until_accepted, [key] * 50, [barrier] * 50))
            self.assertEqual({status for status, _ in answers}, {202})
            self.assertEqual(len({job_id for _, job_id in answers}), 1)
            self.assertEqual(Job.objects.filter(idempotency_key=f"-:{key}").count(), 1)

    def final(self, key: str) -> Any:
        answer = Client().post("/v1/jobs", BODY, "application/json", headers={"Idempotency-Key": key})
        return None if answer.status_code == 503 else answer  # it is told to ask again

    def submit_until_accepted(self, key: str, barrier: threading.Barrier) -> tuple[int, str | None]:
        """The status and the job's id, in a thread of its own. It asks again where it is told to, as a client does."""
        try:
            barrier.wait()
            answer = eventually(lambda: self.final(key), "answered")
            return answer.status_code, answer.json().get("id")
        finally:
            connection.close()


class FormTests(ApiTestCase):
    """One job is answered in each form in which it is asked for, and other work with its key is refused."""

    def ask(self, answer: Answer, *calls: tuple[str, dict[str, Any]]) -> list[Response]:
        with self.worker(answer):
            answers = [self.post(path, body, headers={"Idempotency-Key": "k"}) for path, body in calls]
        self.assertEqual((Job.objects.count(), {each.status_code for each in answers}), (1, {200}))
        return answers

    def assert_refused(self, status: int, path: str, body: dict[str, Any]) -> None:
        refused = self.post(path, body, headers={"Idempotency-Key": "k"})
        self.assertEqual((refused.status_code, Job.objects.count()), (status, 1))
        self.assertIn(b"This Idempotency-Key was used with another request.", refused.content)

    @override_settings(MODELS_FILE=test_completions.MODELS_FILE)
    def test_a_chat(self) -> None:
        chat = {"model": "prompts", "messages": HELLO, "max_tokens": 9}
        response = {"model": "prompts", "input": "hello", "max_output_tokens": 9}
        parameters = {"max_new_tokens": 9, "return_full_text": False, "details": True}
        whole, streamed, shown, events, begun, own = self.ask(
            generated,
            (CHAT, chat),
            (CHAT, {**chat, "stream": True}),
            ("/v1/responses", response),
            ("/v1/responses", {**response, "stream": True}),
            ("/v1/responses", {**response, "background": True}),
            ("/v1/models/prompts", {"inputs": HELLO, "parameters": parameters}),
        )
        self.assertEqual(whole.json()["choices"][0]["message"]["content"], "<user:hello>")
        self.assertEqual({streamed["Content-Type"], events["Content-Type"]}, {CONTENT_TYPE})
        self.assertIn(b'"chat.completion.chunk"', streamed.getvalue())
        self.assertIn(b'"type":"response.completed"', events.getvalue())
        for each in (shown, begun):
            self.assertEqual(each.json()["output"][0]["content"][0]["text"], "<user:hello>")
        self.assertEqual(own.json()[0]["generated_text"], "<user:hello>")
        for path, body in (
            (CHAT, {**chat, "max_tokens": 8}),
            (CHAT, {**chat, "max_tokens": 8, "stream": True}),
            ("/v1/responses", {**response, "instructions": "be kind"}),
            ("/v1/responses", {**response, "metadata": {"order": "4711"}}),
        ):
            self.assert_refused(400, path, body)

    @override_settings(MODELS_FILE=test_tei.MODELS_FILE)
    def test_vectors(self) -> None:
        requested: dict[str, Any] = {"model": "vectors", "input": ["a"]}
        floats, base64, tei, single, cohere = self.ask(
            embed,
            ("/v1/embeddings", requested),
            ("/v1/embeddings", {**requested, "encoding_format": "base64"}),
            ("/embed", {"inputs": "a"}),
            ("/v1/embeddings", {**requested, "input": "a"}),
            ("/v2/embed", {"model": "vectors", "texts": ["a"]}),
        )
        self.assertEqual(floats.json()["data"][0]["embedding"], vector_of("a"))
        self.assertEqual(base64.json()["data"][0]["embedding"], encoded("a"))
        self.assertEqual(single.json(), floats.json())
        self.assertEqual((tei.json(), cohere.json()["embeddings"]), ([vector_of("a")], {"float": [vector_of("a")]}))
        self.assert_refused(400, "/v1/embeddings", {**requested, "input": ["b"]})
        self.assert_refused(422, "/embed", {"inputs": "b"})
        self.assert_refused(422, "/v2/embed", {"model": "vectors", "texts": ["b"]})

    @override_settings(MODELS_FILE=test_tei.MODELS_FILE)
    def test_a_ranking(self) -> None:
        requested = {"query": "q", "documents": ["b", "ddd"]}
        whole, best, tei = self.ask(
            score,
            ("/v1/rerank", requested),
            ("/v1/rerank", {**requested, "top_n": 1}),
            ("/rerank", {"query": "q", "texts": ["b", "ddd"], "raw_scores": True}),
        )
        self.assertEqual([each["index"] for each in whole.json()["results"]], [1, 0])
        self.assertEqual(best.json()["results"], [{"index": 1, "relevance_score": sigmoid(1)}])
        self.assertEqual(tei.json(), [{"index": 1, "score": 1.0}, {"index": 0, "score": -1.0}])
        self.assert_refused(422, "/v1/rerank", {**requested, "query": "p"})
