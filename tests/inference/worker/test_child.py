"""What a pool child does with a batch, beside its engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from django.test import TransactionTestCase

from api import codec
from inference import errors
from inference.catalog.specs import ModelSpec
from inference.engines import isolate, json_values
from inference.engines.base import Engine
from inference.models import Job, Status
from inference.store import rows
from inference.worker import child
from inference.worker.calls import BatchCall, BatchReport


class Answers(Engine):
    """Gives each input its answer."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        super().__init__(ModelSpec(name="m", engine="x:Y"))
        self.answers = answers

    def load(self, device: str) -> None:
        pass

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        return [self.answers[text] for text in inputs]


def run_batch(engines: dict[str, Engine], *jobs: Job, verdict: str = "") -> BatchReport:
    rows.insert(list(map(rows.prepare, jobs)))
    replica = child.Replica(worker=uuid4(), device="cpu", engines=engines)
    ids = tuple(job.pk for job in jobs)
    call = BatchCall(batch=uuid4(), model=jobs[0].model, job_ids=ids, time_limit_s=60, verdict=verdict)
    with patch.object(child, "replica", replica, create=True):
        report = child.run_batch(call)
    for job in jobs:
        job.refresh_from_db()
    return report


class VerdictTests(TransactionTestCase):
    def test_a_model_that_is_not_loaded_is_told_before_the_claim(self) -> None:
        job = Job(model="gone", inputs="text")
        with self.assertRaises(errors.ModelUnavailable):
            run_batch({}, job)
        job.refresh_from_db()
        self.assertEqual((job.status, job.attempts), (Status.QUEUED, 0))

    def test_a_condemned_job_fails_also_where_its_model_is_not_loaded(self) -> None:
        job = Job(model="gone", inputs="text")
        report = run_batch({}, job, verdict=errors.Crashed.code)
        self.assertEqual((job.status, job.error_code), (Status.FAILED, errors.Crashed.code))
        self.assertEqual((report.errors, report.calls), ({job.pk: errors.Crashed.code}, 0))


class RecordTests(TransactionTestCase):
    def run_with(self, answer: Any) -> Job:
        """One job with this answer, among others that succeed."""
        jobs = [Job(model="m", inputs=text) for text in ("a", "bad", "z")]
        report = run_batch({"m": Answers({"a": "A", "bad": answer, "z": ["Ω"]})}, *jobs)
        self.assertEqual([(job.status, job.output) for job in jobs[::2]], [("succeeded", "A"), ("succeeded", ["Ω"])])
        self.assertEqual(report.errors, {job.pk: job.error_code for job in jobs})
        return jobs[1]

    def test_text_that_no_database_stores_fails_alone(self) -> None:
        for answer in ("\0", ["\ud800"], {"a\0": 1}, [{"\udfff": 1}], "é\ud83d"):
            with self.subTest(answer):
                self.assertEqual(self.run_with(answer).error_code, errors.BadOutput.code)

    def test_an_answer_that_cannot_be_read_fails_alone(self) -> None:
        endless: list[Any] = []
        endless.append(endless)
        self.assertEqual(self.run_with(endless).error_code, errors.BadOutput.code)

    def test_an_answer_that_is_too_large_fails_alone(self) -> None:
        for answer in ([[0.5] * 1000] * 2001, "a" * 33_000_000, [{"a": [1] * 1000}] * 2001):
            job = self.run_with(answer)
            self.assertEqual(job.error_code, errors.BadOutput.code)
            self.assertIn("at most 2000000 are kept", job.error_detail)

    def test_an_answer_that_no_client_could_be_sent_fails_alone(self) -> None:
        deep: Any = 0.5
        for _ in range(300):
            deep = {"a": [deep]}
        for answer in (deep, 2**64, [1, -(2**63) - 1], [2**70] * 3):
            self.assertEqual(self.run_with(answer).error_code, errors.BadOutput.code)

    def test_what_can_be_kept_is_sent_as_it_was(self) -> None:
        deep: Any = 2**64 - 1
        for _ in range(json_values.MAX_DEPTH):
            deep = [deep]
        job = Job(model="m", inputs="text")
        run_batch({"m": Answers({"text": deep})}, job)
        self.assertEqual(job.output, deep)
        codec.dumps({"results": [{"output": job.output}]})

    def test_what_only_the_database_refuses_fails_alone(self) -> None:
        with patch.object(isolate, "plain", lambda answer: answer):
            self.assertEqual(self.run_with(10**5000).error_code, errors.BadOutput.code)

    def test_an_error_is_recorded_whatever_its_text_holds(self) -> None:
        job = self.run_with(errors.InvalidInput("\0 and \ud800"))
        self.assertEqual((job.error_code, job.error_detail), ("invalid_input", r"\u0000 and \ud800"))

    def test_the_text_of_an_error_is_bounded(self) -> None:
        for error in (errors.InvalidInput("a" * 100_000), errors.EngineError("\0" * 100_000)):
            job = self.run_with(error)
            self.assertEqual((job.error_code, len(job.error_detail)), (error.code, 2000))
            self.assertEqual(job.error_detail[-1], "…")
