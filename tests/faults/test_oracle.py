"""The oracle must be able to fail: what it is to see is done on purpose."""

from __future__ import annotations

import unittest
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

from django.db.models import F, QuerySet
from django.test import tag
from django.utils import timezone

from inference.models import Figure, Grain, Job, Status
from tests import echo
from tests.conditions import PATIENCE_S
from tests.faults import oracle
from tests.faults.oracle import Oracle, Verdict
from tests.faults.service import Service
from tests.faults.trial import Trial
from tests.inference.figures.agreement import of_rows
from tests.second_look import TAG

SOON_S = 5.0  # of which the jobs need two, if somebody runs them


@tag(TAG)
class OracleTests(unittest.TestCase):
    service: Service
    oracle: Oracle

    @classmethod
    def setUpClass(cls) -> None:
        cls.service = cls.enterClassContext(Service(worker_module="tests.faults.without_reconciler"))
        cls.oracle = Oracle(cls.service)

    def setUp(self) -> None:
        self.oracle.forget()

    def store(self, *, counted: bool = True, **values: Any) -> UUID:
        """A finished job whose answer is right, but for `values`; its claim and its end were seen."""
        job = self.service.jobs.create(model="echo", inputs="text", status=Status.RUNNING, batch=uuid4())
        rows = self.service.jobs.filter(pk=job.pk)
        rows.update(attempts=F("attempts") + 1)
        right = {"status": Status.SUCCEEDED, "output": echo.expected("text"), "finished_at": timezone.now()}
        rows.update(**{**right, **values})
        self.addCleanup(rows.delete)
        if counted:
            self.count(rows)
        return job.pk

    def count(self, ended: QuerySet[Job]) -> None:
        figures = Figure.objects.using(self.service.alias)
        for (model, end), count in of_rows(ended).items():
            tally = {"ended": {end: count}}
            figure = figures.create(grain=Grain.WRITTEN, start=timezone.now(), model=model, tally=tally)
            self.addCleanup(figures.filter(pk=figure.pk).delete)

    def judge(self, *ids: UUID) -> Verdict:
        """Judge jobs that were stored beside the service: there is nothing to wait for."""
        with patch.object(oracle, "IDLE_LIMIT_S", 0.1):
            return self.oracle.judge(dict.fromkeys(ids, "text"), outcomes={}, limit_s=0.1)

    def test_a_job_that_ended_once_with_the_right_answer_is_fine(self) -> None:
        verdict = self.judge(self.store())
        self.assertEqual((verdict.succeeded, verdict.executed_twice, verdict.problems), (1, 0, []))

    def test_an_outcome_that_is_recorded_again_is_seen_though_it_is_equal(self) -> None:
        job_id = self.store()
        self.service.jobs.filter(pk=job_id).update(status=Status.SUCCEEDED)
        self.assertEqual(self.judge(job_id).recorded_twice, 1)

    def test_an_answer_that_changes_after_the_end_is_seen(self) -> None:
        job_id = self.store(output={"echo": "another"})
        self.service.jobs.filter(pk=job_id).update(output=echo.expected("text"))
        self.assertEqual(self.judge(job_id).recorded_twice, 1)

    def test_an_end_that_is_not_counted_is_a_problem(self) -> None:
        (problem,) = self.judge(self.store(counted=False)).problems
        self.assertIn("figures", problem)

    def test_a_second_claim_is_counted(self) -> None:
        job_id = self.store(status=Status.RUNNING, output=None, finished_at=None)
        self.service.jobs.filter(pk=job_id).update(attempts=F("attempts") + 1)
        self.service.jobs.filter(pk=job_id).update(status=Status.SUCCEEDED, output=echo.expected("text"))
        self.assertEqual(self.judge(job_id).executed_twice, 1)

    def test_a_wrong_answer_and_an_unexpected_failure_are_problems(self) -> None:
        wrong, failed = self.store(output=echo.expected("other")), self.store(status=Status.FAILED, error_code="lost")
        verdict = self.judge(wrong, failed)
        self.assertEqual((verdict.succeeded, verdict.failed, len(verdict.problems)), (1, 1, 2))

    def test_a_job_without_a_row_and_one_that_does_not_end_are_lost(self) -> None:
        self.assertEqual(self.judge(uuid4(), self.store(status=Status.RUNNING)).lost, 2)

    def test_a_killed_worker_without_a_reconciler_loses_jobs_and_one_with_it_finds_them(self) -> None:
        trial = Trial(self.service, self.oracle, row="1", number=0, seed=1, quick=True)
        trial.submit_some(12, model="slow")
        trial.until_running("slow")
        self.service.restart("worker1")
        self.assertGreater(self.oracle.judge(trial.accepted, outcomes={}, limit_s=SOON_S).lost, 0)
        self.service.worker_module = "celery"
        self.service.restart("worker1")
        verdict = self.oracle.judge(trial.accepted, outcomes={}, limit_s=PATIENCE_S)
        self.assertEqual((verdict.succeeded, verdict.lost, verdict.problems), (12, 0, []))
