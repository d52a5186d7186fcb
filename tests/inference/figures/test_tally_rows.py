"""Every end of a job is counted once, in the transaction that ends it: to the job, whatever fails in between."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

from django.db import OperationalError, connection, transaction
from django.db.models import Q
from django.test import TransactionTestCase, override_settings

from inference import clock, errors
from inference.figures import rollup, series, tally_rows
from inference.models import Figure, Grain, Job
from inference.store import outcome_records, transitions, wholes
from inference.store.outcome_records import Outcome
from inference.store.transitions import Claimed
from inference.worker.child import batch_job_rows, outcome_builder
from tests.conditions import ago, at_once
from tests.inference.figures.agreement import drop_tallies, of_figures, of_rows
from tests.inference.store.test_transitions import claim, make_job
from tests.inference.store.test_wholes import answer, fail, make_whole
from tests.inference.store.test_wholes import claim as claim_parts
from tests.inference.store.test_wholes import record as record_parts


def done(job: Job) -> Outcome:
    return Outcome(job_id=job.pk, model=job.model, output="y")


class LedgerCase(TransactionTestCase):
    def setUp(self) -> None:
        drop_tallies()

    def claimed(self, *jobs: Job) -> tuple[UUID, list[Claimed]]:
        batch = uuid4()
        return batch, claim(*jobs, batch=batch)

    def run_one(self, **values: Any) -> None:
        job = make_job(**values)
        batch, _ = self.claimed(job)
        outcome_records.record_outcomes(batch, [done(job)], batch_size=1)

    def agree(self) -> None:
        self.assertEqual(of_figures(), of_rows(Job.objects.all()))

    def written(self) -> int:
        return Figure.objects.filter(grain=Grain.WRITTEN).count()


class TestOutcomes(LedgerCase):
    def test_whatever_ends_a_job_is_counted_with_its_model_and_code(self) -> None:
        good, bad = make_job(), make_job()
        batch, _ = self.claimed(good, bad)
        failure = Outcome(job_id=bad.pk, model="echo", error_code="engine_error", error_detail="no")
        outcome_records.record_outcomes(batch, [done(good), failure], batch_size=2)
        transitions.cancel_job(make_job().pk)
        transitions.cancel_jobs_with_parts([make_job().pk, make_job(model="other").pk])
        make_job(expires_at=ago(1))
        transitions.expire_jobs()
        lost = make_job(recoveries=2)
        claim(lost, batch=uuid4(), alone=True)
        transitions.requeue_lost_jobs(Q(pk=lost.pk))
        self.agree()
        self.assertEqual(
            of_figures(),
            {
                ("echo", "succeeded"): 1,
                ("echo", "failed engine_error"): 1,
                ("echo", "cancelled"): 2,
                ("other", "cancelled"): 1,
                ("echo", "expired"): 1,
                ("echo", "failed lost"): 1,
            },
        )

    def test_what_changes_nothing_is_not_counted(self) -> None:
        job = make_job()
        batch, _ = self.claimed(job)
        outcome_records.record_outcomes(batch, [done(job)], batch_size=1)
        outcome_records.record_outcomes(batch, [done(job)], batch_size=1)
        transitions.cancel_job(job.pk)
        transitions.cancel_jobs_with_parts([job.pk])
        transitions.requeue_lost_jobs(Q(pk=job.pk))
        self.agree()

    def test_of_a_batch_those_are_counted_that_it_still_owned(self) -> None:
        jobs = [make_job() for _ in range(5)]
        batch, _ = self.claimed(*jobs)
        transitions.cancel_job(jobs[1].pk)
        transitions.requeue_stopped_worker_jobs(Q(pk=jobs[3].pk))
        self.assertEqual(outcome_records.record_outcomes(batch, [done(job) for job in jobs], batch_size=5), 3)
        self.agree()

    def test_a_list_in_parts_is_one_job(self) -> None:
        _, parts = make_whole(3)
        record_parts(claim_parts(*parts), *[answer(part) for part in parts])
        _, parts = make_whole(3)
        record_parts(claim_parts(parts[0]), fail(parts[0]))
        cancelled, _ = make_whole(3)
        transitions.cancel_jobs_with_parts([cancelled.pk])
        make_whole(2, expires_at=ago(1))
        transitions.expire_jobs()
        _, parts = make_whole(2)
        transitions.cancel_job(parts[0].pk)
        wholes.finish_wholes()
        self.agree()
        self.assertEqual(of_figures().total(), 5)
        self.assertEqual({job.is_finished for job in Job.objects.filter(parts__gt=0)}, {True})

    def test_waits_and_runs_are_those_of_the_rows(self) -> None:
        job = make_job(created_at=ago(4))
        batch, (claimed,) = self.claimed(job)
        outcome_records.record_outcomes(
            batch, [outcome_builder.make_failure(claimed, errors.EngineError("no"))], batch_size=1
        )
        tally = series.sum_all_time_figures()["echo"]
        job.refresh_from_db()
        assert job.queue_wait
        self.assertAlmostEqual(tally["wait"]["sum"], job.queue_wait.total_seconds(), places=3)
        self.assertEqual(sum(tally["run"]["in"].values()), 1)


class TestFailures(LedgerCase):
    def test_a_rollback_counts_nothing_and_loses_no_earlier_count(self) -> None:
        self.run_one()
        job = make_job()
        batch, _ = self.claimed(job)
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            outcome_records.record_outcomes(batch, [done(job)], batch_size=1)
            raise ZeroDivisionError
        self.agree()
        outcome_records.record_outcomes(batch, [done(job)], batch_size=1)
        self.agree()

    def test_a_commit_that_lost_its_answer_is_counted_once(self) -> None:
        """The rows say that it was made: the second try finds nothing to record."""
        self.run_one()
        job = make_job()
        batch, _ = self.claimed(job)
        commit = connection.commit
        said: list[bool] = []

        def commits_and_says_no() -> None:
            commit()
            if not said:
                said.append(True)
                raise OperationalError("server closed the connection unexpectedly")

        with patch.object(connection, "commit", commits_and_says_no):
            batch_job_rows.record_outcomes(batch, [done(job)], batch_size=1, beside={"tokens": 5})
        self.assertTrue(said)
        self.run_one()
        self.agree()
        self.assertEqual(series.sum_all_time_figures()["echo"]["tokens"], 5)

    def test_what_the_database_refuses_is_counted_as_the_failure_that_it_becomes(self) -> None:
        jobs = [make_job() for _ in range(3)]
        batch, claimed = self.claimed(*jobs)
        ended = [Outcome(job_id=job.id, model="echo", output="y") for job in claimed]
        ended[1] = Outcome(job_id=ended[1].job_id, model="echo", output="\ud800")
        batch_job_rows.record_outcomes(batch, ended, batch_size=3, beside={"tokens": 3})
        self.agree()
        self.assertEqual(series.sum_all_time_figures()["echo"]["tokens"], 3)


class TestRows(LedgerCase):
    def test_a_thread_writes_one_row_a_model_and_tick(self) -> None:
        with patch.object(clock, "estimate_now_s", return_value=1_000_000_000.0):
            for _ in range(4):
                self.run_one()
            self.assertEqual(self.written(), 1)
        with patch.object(clock, "estimate_now_s", return_value=1_000_000_000.0 + tally_rows.TICK_S):
            self.run_one()
        self.assertEqual(self.written(), 2)
        self.agree()

    def test_a_row_that_was_put_together_with_others_is_not_counted_again(self) -> None:
        with patch.object(clock, "estimate_now_s", return_value=1_000_000_000.0):  # long ago
            self.run_one()
            rollup.roll_up_rows()
            self.assertEqual(self.written(), 0)
            self.run_one()
        self.agree()

    def test_it_costs_a_batch_one_statement(self) -> None:
        with patch.object(clock, "estimate_now_s", return_value=1_000_000_000.0):
            self.run_one()
            job = make_job()
            batch, _ = self.claimed(job)
            with self.assertNumQueries(4):  # begin, the outcomes, the figures, commit
                outcome_records.record_outcomes(batch, [done(job)], batch_size=1)

    def test_what_could_not_be_flushed_is_kept(self) -> None:
        tally_rows.note_tally("echo", {"cost": {"off_s": 1.0}})
        with (
            patch.object(tally_rows, "insert_tally", side_effect=OperationalError),
            self.assertRaises(OperationalError),
        ):
            tally_rows.flush_tallies()
        tally_rows.note_tally("echo", {"cost": {"off_s": 0.5}})
        tally_rows.flush_tallies()
        tally_rows.flush_tallies()
        self.assertEqual(series.sum_all_time_figures()["echo"]["cost"], {"off_s": 1.5})

    def test_what_was_so_at_a_moment_is_not_kept(self) -> None:
        for waiting in (100, 100, 7):
            tally_rows.note_tally("", {"now": {"requests_waiting": waiting}})
            away = patch.object(tally_rows, "insert_tally", side_effect=OperationalError if waiting == 100 else None)
            with away as write, contextlib.suppress(OperationalError):
                tally_rows.flush_tallies()
        write.assert_called_once_with("", {"now": {"requests_waiting": 7}})


@override_settings(MAX_RECOVERIES=3)
class TestManyAtOnce(LedgerCase):
    def test_the_figures_are_right_when_jobs_are_ended_concurrently(self) -> None:
        jobs = [make_job() for _ in range(24)]
        batches = [self.claimed(*jobs[start : start + 6])[0] for start in range(0, 24, 6)]

        def record(place: int) -> None:
            mine = jobs[6 * place : 6 * place + 6]
            outcome_records.record_outcomes(batches[place], [done(job) for job in mine], batch_size=6)

        def cancel(place: int) -> None:
            for job in jobs[place::8]:
                transitions.cancel_job(job.pk)

        calls = [partial(act, place) for act in (record, cancel) for place in range(4)]
        at_once([*calls, rollup.roll_up_rows, rollup.roll_up_rows])
        self.agree()
