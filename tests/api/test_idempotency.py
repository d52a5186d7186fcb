import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client

from api.models import ApiKey
from inference import process
from inference.models import Job
from tests.api.base import ApiTestCase, Response
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
        process.current.queue_counters.clear()
        self.assert_problem(self.send("k2"), 503, "queue_full")
        self.assertEqual(self.send("k1").json()["id"], job["id"])

    def test_everybody_has_keys_of_their_own(self) -> None:
        keys = [
            ApiKey.objects.issue_key(owner=get_user_model().objects.create_user(name))[1] for name in ("ada", "bob")
        ]
        ids = {self.send("k1", Authorization=f"Bearer {key}").json()["id"] for key in keys}
        self.assertEqual(len(ids), 2)

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
