"""The API under Django's test client, with the real broker and a worker that runs in a thread of the test."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID, uuid4

from django.db import connection
from django.test import TransactionTestCase, override_settings

from inference import process_resources
from inference.broker import redis_client
from inference.catalog.lookup import get_catalog, get_spec
from inference.catalog.sizes import lengths
from inference.errors import InferenceError
from inference.models import Job, Status, Worker, WorkerState
from inference.store import outcome_records, transitions
from inference.store.outcome_records import Outcome
from tests import echo
from tests.conditions import PATIENCE_S

if TYPE_CHECKING:
    from django.test.client import _MonkeyPatchedWSGIResponse

MODELS_FILE = Path(__file__).with_name("models.toml")
Answer: TypeAlias = Callable[[Any, dict[str, Any]], Any]
Response: TypeAlias = "_MonkeyPatchedWSGIResponse"  # what the test client answers


def echo_answer(value: Any, parameters: dict[str, Any]) -> Any:
    (answer,) = echo.EchoEngine(get_spec("echo")).predict([value], parameters)
    return answer


class Laborer(threading.Thread):
    """Takes queued jobs as a worker does: claims, answers, records, notifies."""

    def __init__(self, answer: Answer = echo_answer) -> None:
        super().__init__(name="laborer", daemon=True)
        self.answer = answer
        self.stopping = threading.Event()
        self.row = Worker.objects.create(
            name="laborer",
            pid=1,
            state=WorkerState.READY,
            model_names=list(get_catalog()),
            replicas={"0": {"pid": 1, "device": "cpu", "models": dict.fromkeys(get_catalog(), "ready")}},
        )

    def run(self) -> None:
        try:
            while not self.stopping.wait(0.01):
                self.work()
        finally:
            connection.close()

    def work(self) -> None:
        for job in Job.objects.filter(status=Status.QUEUED).order_by("priority", "id"):
            batch = uuid4()
            for mine in self.claimed(job, batch):
                outcome_records.record_outcomes(batch, [self.outcome(mine)], batch_size=mine.size)

    def claimed(self, job: Job, batch: UUID) -> list[transitions.Claimed]:
        return transitions.claim_jobs(
            [job.id], batch, model=job.model, time_limit_s=PATIENCE_S, takes_over=(), worker=self.row.id, device="cpu"
        )

    def outcome(self, job: transitions.Claimed) -> Outcome:
        several = lengths.is_input_list(get_spec(job.model), job.inputs)
        answers = [self.answer(item, job.parameters) for item in (job.inputs if several else [job.inputs])]
        of: dict[str, Any] = {"job_id": job.id, "model": job.model, "whole": job.whole}
        for answer in answers:
            if isinstance(answer, InferenceError):
                return Outcome(**of, error_code=answer.code, error_detail=answer.message)
        return Outcome(**of, output=answers if several else answers[0])


@override_settings(MODELS_FILE=MODELS_FILE, API_KEY_REQUIRED=False, WORKER_SILENT_S=PATIENCE_S)
class ApiTestCase(TransactionTestCase):
    def setUp(self) -> None:
        redis_client.get_client().flushdb()
        process_resources.current.queue_counters.clear()

    @contextlib.contextmanager
    def worker(self, answer: Answer = echo_answer) -> Iterator[Laborer]:
        laborer = Laborer(answer)
        laborer.start()
        try:
            yield laborer
        finally:
            laborer.stopping.set()
            laborer.join()

    def idle_worker(self) -> Worker:
        """Have a living worker that takes no job."""
        return Laborer().row

    def post(self, path: str, body: Any = None, **options: Any) -> Response:
        content = body if isinstance(body, (bytes, str)) else json.dumps(body)
        options.setdefault("content_type", "application/json")
        return self.client.post(path, content, **options)

    def submit(self, inputs: Any = "text", **body: Any) -> dict[str, Any]:
        answer = self.post("/v1/jobs", {"model": "echo", "inputs": inputs, **body})
        self.assertEqual(answer.status_code, 202, answer.content)
        job: dict[str, Any] = answer.json()
        return job

    def assert_problem(self, answer: Response, status: int, code: str) -> dict[str, Any]:
        self.assertEqual(answer.status_code, status, answer.content)
        self.assertEqual(answer["Content-Type"], "application/problem+json")
        problem: dict[str, Any] = answer.json()
        self.assertEqual((problem["code"], problem["status"]), (code, status))
        self.assertEqual(problem["error"], problem["detail"])
        self.assertEqual(problem["request_id"], answer["X-Request-Id"])
        return problem
