"""What a claim and a record make of a database that is away, and of one that refuses."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

from django.db import DataError, OperationalError, ProgrammingError
from django.test import TestCase

from inference import errors
from inference.models import Job, Status
from inference.store import outcome_records, transitions
from inference.store.outcome_records import Outcome
from inference.worker.calls import BatchCall
from inference.worker.child import batch_job_rows
from inference.worker.child.loaded_models import LoadedModels
from tests.inference.store.test_transitions import claim, make_job, outcome

record_in_database = outcome_records.record_outcomes
REFUSED = "refused"  # the answer that the stand-in of the database does not take


def refuse(batch: UUID, outcomes: list[Outcome], **options: Any) -> int:
    """Record outcomes as the database does, which refuses one answer, and all that come with it."""
    if any(each.output == REFUSED for each in outcomes):
        raise DataError("no such value")
    return record_in_database(batch, outcomes, **options)


class ClaimTests(TestCase):
    def claim(self) -> None:
        call = BatchCall(batch=uuid4(), model="m", digest="d", job_ids=(uuid4(),), time_limit_s=1)
        batch_job_rows.claim_jobs(call, LoadedModels(worker=uuid4(), device="cpu", host_device="cpu"))

    def test_a_database_that_stays_away_is_no_fault_of_the_jobs(self) -> None:
        away = patch.object(transitions, "claim_jobs", side_effect=OperationalError("away"))
        with (
            away as claim_mock,
            patch.object(batch_job_rows, "CLAIM_PATIENCE_S", 0.0),
            self.assertRaises(errors.StoreUnavailable),
        ):
            self.claim()
        self.assertTrue(claim_mock.called)

    def test_a_claim_that_the_database_refuses_is_raised_as_it_is(self) -> None:
        refused = patch.object(transitions, "claim_jobs", side_effect=ProgrammingError("no such column"))
        with refused as claim_mock, self.assertRaisesRegex(ProgrammingError, "no such column"):
            self.claim()
        self.assertEqual(claim_mock.call_count, 1)


class RecordTests(TestCase):
    def setUp(self) -> None:
        self.batch = uuid4()
        self.jobs = [make_job() for _ in range(3)]
        claim(*self.jobs, batch=self.batch)

    def record(self, *outputs: Any, **options: Any) -> list[Outcome]:
        outcomes = [outcome(job, output=output) for job, output in zip(self.jobs, outputs, strict=False)]
        return batch_job_rows.record_outcomes(self.batch, outcomes, batch_size=3, **options)

    def stored(self) -> list[tuple[str, str]]:
        rows = {job.pk: job for job in Job.objects.all()}
        return [(rows[job.pk].status, rows[job.pk].error_code) for job in self.jobs]

    def test_a_database_that_stays_away_spoils_no_answer(self) -> None:
        away = patch.object(outcome_records, "record_outcomes", side_effect=OperationalError("away"))
        with (
            away,
            patch.object(batch_job_rows, "RECORD_PATIENCE_S", 0.0),
            self.assertNoLogs(batch_job_rows.logger, "ERROR"),
        ):
            self.assertRaises(OperationalError, self.record, "a", "b", "c")
        self.assertEqual(self.stored(), [(Status.RUNNING, "")] * 3)

    def test_an_answer_that_the_database_refuses_fails_alone_and_what_is_beside_is_counted_once(self) -> None:
        beside = {"calls": 1}
        with patch.object(outcome_records, "record_outcomes", side_effect=refuse) as record:
            recorded = self.record("a", REFUSED, "c", beside=beside)
        bad = errors.BadOutput.code
        self.assertEqual(self.stored(), [(Status.SUCCEEDED, ""), (Status.FAILED, bad), (Status.SUCCEEDED, "")])
        self.assertEqual([each.error_code for each in recorded], ["", bad, ""])
        tried = [(len(each.args[1]), each.kwargs["beside"]) for each in record.call_args_list]
        self.assertEqual(tried, [(3, beside), (1, beside), (1, None), (1, None), (1, None)])

    def test_where_even_the_refusal_is_refused_it_is_raised(self) -> None:
        with patch.object(outcome_records, "record_outcomes", side_effect=DataError("no such value")) as record:
            self.assertRaises(DataError, self.record, "a")
        self.assertEqual(record.call_count, 2)

    def test_outcomes_of_jobs_that_were_cancelled_are_dropped(self) -> None:
        Job.objects.filter(pk=self.jobs[1].pk).update(status=Status.CANCELLED)
        with self.assertLogs(batch_job_rows.logger, "INFO") as logged:
            self.record("a", "b", "c")
        self.assertIn("1 of 3 outcomes dropped", logged.output[0])
        self.assertEqual(
            [status for status, _ in self.stored()], [Status.SUCCEEDED, Status.CANCELLED, Status.SUCCEEDED]
        )
