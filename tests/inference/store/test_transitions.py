import datetime
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

from django.conf import settings
from django.db import IntegrityError, connection, transaction
from django.db.models import Q
from django.test import TestCase, TransactionTestCase, skipUnlessDBFeature
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inference import row_locks
from inference.fields.ids import make_row_id
from inference.models import Job, Status
from inference.store import job_rows, notices, outcome_records, transitions
from inference.store.outcome_records import Outcome
from tests.conditions import PATIENCE_S, eventually

WORKER = uuid4()
AN_HOUR = datetime.timedelta(hours=1)  # before and after now, however slow the machine is


def make_job(**values: Any) -> Job:
    return Job.objects.create(**{"model": "echo", "inputs": "text", **values})


def outcome(job: Job, **values: Any) -> Outcome:
    return Outcome(job_id=job.pk, model=job.model, **values)


def claim(
    *jobs: Job, batch: UUID, takes_over: Sequence[UUID] = (), model: str = "echo", alone: bool = False
) -> list[transitions.Claimed]:
    return transitions.claim_jobs(
        [job.pk for job in jobs],
        batch,
        model=model,
        time_limit_s=60,
        alone=alone,
        takes_over=takes_over,
        worker=WORKER,
        device="cpu",
    )


class ClaimTests(TestCase):
    def test_a_claim_marks_the_rows_and_returns_their_inputs(self) -> None:
        job, batch = make_job(inputs="hello", parameters={"top_k": 1}), uuid4()
        (claimed,) = claim(job, batch=batch)
        self.assertEqual((claimed.inputs, claimed.parameters), ("hello", {"top_k": 1}))
        job.refresh_from_db()
        self.assertEqual((job.status, job.batch, job.worker, job.attempts), (Status.RUNNING, batch, WORKER, 1))
        self.assertIsNotNone(job.started_at)

    def test_the_lease_is_the_time_limit_of_this_run_and_a_margin(self) -> None:
        job = make_job()
        claim(job, batch=uuid4())
        job.refresh_from_db()
        assert job.lease_until
        assert job.started_at
        lease_s = (job.lease_until - job.started_at).total_seconds()
        self.assertAlmostEqual(lease_s, 60 + transitions.LEASE_MARGIN_S, places=2)

    def test_running_a_claimed_job_reads_nothing_more(self) -> None:
        job = make_job()
        (claimed,) = claim(job, batch=uuid4())
        with self.assertNumQueries(0):
            [getattr(claimed, name) for name in ("model", "inputs", "parameters", "size", "length", "created_at")]

    def test_a_job_is_claimed_once(self) -> None:
        job = make_job()
        self.assertEqual(len(claim(job, batch=uuid4())), 1)
        self.assertEqual(claim(job, batch=uuid4()), [])

    def test_a_job_before_its_last_recovery_is_claimed_by_who_runs_it_alone(self) -> None:
        job = make_job(recoveries=settings.MAX_RECOVERIES - 1)
        self.assertEqual(claim(job, batch=uuid4()), [])
        self.assertEqual(len(claim(job, batch=uuid4(), alone=True)), 1)

    def test_a_claim_that_lost_its_answer_is_made_again(self) -> None:
        job, batch = make_job(), uuid4()
        claim(job, batch=batch)
        self.assertEqual([claimed.id for claimed in claim(job, batch=batch)], [job.pk])

    def test_finished_and_cancelled_jobs_are_not_claimed(self) -> None:
        for status in (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.EXPIRED):
            with self.subTest(status):
                self.assertEqual(claim(make_job(status=status), batch=uuid4()), [])

    def test_a_job_past_its_deadline_is_not_claimed(self) -> None:
        past, future = make_job(expires_at=timezone.now() - AN_HOUR), make_job(expires_at=timezone.now() + AN_HOUR)
        self.assertEqual([job.id for job in claim(past, future, batch=uuid4())], [future.pk])

    def test_a_job_of_another_model_or_an_unknown_id_is_not_claimed(self) -> None:
        job = make_job(model="other")
        self.assertEqual(claim(job, Job(), batch=uuid4()), [])

    def test_the_batch_that_is_over_is_taken_over_and_no_other(self) -> None:
        job, first, second = make_job(), uuid4(), uuid4()
        claim(job, batch=first)
        self.assertEqual(claim(job, batch=second, takes_over=[uuid4()]), [])
        self.assertEqual(len(claim(job, batch=second, takes_over=[first])), 1)
        job.refresh_from_db()
        self.assertEqual((job.batch, job.attempts), (second, 2))


class RecordTests(TestCase):
    def test_outcomes_are_recorded_with_the_batch_size(self) -> None:
        good, bad, batch = make_job(), make_job(), uuid4()
        claim(good, bad, batch=batch)
        outcomes = [
            outcome(good, output=[0.5, {"label": "A"}]),
            outcome(bad, error_code="engine_error", error_detail="no"),
        ]
        self.assertEqual(outcome_records.record_outcomes(batch, outcomes, batch_size=2), 2)
        good.refresh_from_db()
        bad.refresh_from_db()
        self.assertEqual((good.status, good.output, good.batch_size), (Status.SUCCEEDED, [0.5, {"label": "A"}], 2))
        self.assertEqual((bad.status, bad.error_code, bad.error_detail), (Status.FAILED, "engine_error", "no"))
        assert good.finished_at
        assert good.started_at
        self.assertGreaterEqual(good.finished_at, good.started_at)

    def test_those_of_a_batch_are_recorded_in_one_statement_and_large_ones_in_several(self) -> None:
        for output, statements in (("short", 1), ("x" * 100, 4)):
            jobs, batch = [make_job() for _ in range(4)], uuid4()
            claim(*jobs, batch=batch)
            outcomes = [outcome(job, output=f"{output} {job.pk}") for job in jobs]
            with patch.object(job_rows, "MOST_BYTES", 200), CaptureQueriesContext(connection) as queries:
                self.assertEqual(outcome_records.record_outcomes(batch, outcomes, batch_size=4), 4)
            updates = [query["sql"] for query in queries if query["sql"].startswith("UPDATE inference_job")]
            self.assertEqual(len(updates), statements)
            for job in jobs:
                job.refresh_from_db()
                self.assertEqual((job.output, job.status), (f"{output} {job.pk}", Status.SUCCEEDED))

    def test_an_outcome_of_a_lost_claim_is_dropped(self) -> None:
        job, zombie, owner = make_job(), uuid4(), uuid4()
        claim(job, batch=zombie)
        claim(job, batch=owner, takes_over=[zombie])
        self.assertEqual(outcome_records.record_outcomes(zombie, [outcome(job, output="late")], batch_size=1), 0)
        self.assertEqual(outcome_records.record_outcomes(owner, [outcome(job, output="right")], batch_size=1), 1)
        job.refresh_from_db()
        self.assertEqual(job.output, "right")

    def test_a_recorded_or_cancelled_job_never_changes(self) -> None:
        job, batch = make_job(), uuid4()
        claim(job, batch=batch)
        Job.objects.filter(pk=job.pk).update(status=Status.CANCELLED)
        self.assertEqual(outcome_records.record_outcomes(batch, [outcome(job, output="late")], batch_size=1), 0)
        job.refresh_from_db()
        self.assertEqual((job.status, job.output), (Status.CANCELLED, None))

    def test_an_output_of_null_succeeds(self) -> None:
        job, batch = make_job(), uuid4()
        claim(job, batch=batch)
        outcome_records.record_outcomes(batch, [outcome(job, output=None)], batch_size=1)
        job.refresh_from_db()
        self.assertEqual((job.status, job.output), (Status.SUCCEEDED, None))


class NoticeTests(TestCase):
    def test_a_notice_is_published_once_a_job_has_ended_and_not_before(self) -> None:
        job, batch = make_job(), uuid4()
        with patch.object(notices, "publish_finished_jobs") as publish:
            claim(job, batch=batch)
            transitions.requeue_stopped_worker_jobs(Q(pk=job.pk))
            transitions.expire_jobs()
            publish.assert_not_called()
            transitions.cancel_job(job.pk)
            transitions.cancel_job(job.pk)
            publish.assert_called_once_with([job.pk])

    def test_whatever_ends_a_job_publishes_a_notice(self) -> None:
        batch = uuid4()
        ends: dict[str, Callable[[Job], object]] = {
            "recorded": lambda job: outcome_records.record_outcomes(batch, [outcome(job, output="done")], batch_size=1),
            "cancelled": lambda job: transitions.cancel_job(job.pk),
            "cancelled with others": lambda job: transitions.cancel_jobs_with_parts([job.pk]),
            "lost": lambda job: transitions.requeue_lost_jobs(Q(pk=job.pk)),
            "expired": lambda job: transitions.expire_jobs(),
        }
        for how, end in ends.items():
            job = make_job(recoveries=settings.MAX_RECOVERIES - 1)
            if how == "expired":
                Job.objects.filter(pk=job.pk).update(expires_at=timezone.now() - AN_HOUR)
            else:
                claim(job, batch=batch, alone=True)
            with self.subTest(how), patch.object(notices, "publish_finished_jobs") as publish:
                end(job)
                publish.assert_called_once_with([job.pk])
                job.refresh_from_db()
                self.assertTrue(job.is_finished)


@skipUnlessDBFeature("has_select_for_update")
class LockTests(TransactionTestCase):
    """Who changes several rows waits for the oldest, and holds none that is younger: two of them never wait for each
    other."""

    def pair(self, **values: Any) -> tuple[Job, Job]:
        """Return an older and a younger job, which lie in the table the other way round."""
        first, second = make_row_id(), make_row_id()
        younger, older = (make_job(id=job_id, **values) for job_id in (second, first))
        return older, younger

    def held(self) -> tuple[Job, Job, UUID]:
        """Return such a pair that a batch holds, and the batch."""
        older, younger = self.pair()
        batch = uuid4()
        for job in (younger, older):
            claim(job, batch=batch)
        return older, younger, batch

    def assert_locks_in_order(self, older: Job, younger: Job, change: Callable[[], object]) -> None:
        def run() -> None:
            change()
            connection.close()

        changing = threading.Thread(target=run)
        with transaction.atomic():
            Job.objects.select_for_update().get(pk=older.pk)
            changing.start()
            eventually(self.somebody_waits, "the change waits for a row")
            Job.objects.select_for_update(nowait=True).get(pk=younger.pk)
        changing.join(PATIENCE_S)
        self.assertFalse(changing.is_alive())

    def test_who_claims(self) -> None:
        older, younger = self.pair()
        self.assert_locks_in_order(older, younger, lambda: claim(younger, older, batch=uuid4()))
        self.assertEqual(Job.objects.filter(status=Status.RUNNING).count(), 2)

    def test_who_records(self) -> None:
        older, younger, batch = self.held()
        outcomes = [outcome(job, output="done") for job in (younger, older)]
        self.assert_locks_in_order(
            older, younger, lambda: outcome_records.record_outcomes(batch, outcomes, batch_size=2)
        )
        self.assertEqual(Job.objects.filter(status=Status.SUCCEEDED).count(), 2)

    def test_who_records_in_several_statements(self) -> None:
        older, younger, batch = self.held()
        outcomes = [outcome(job, output="x" * 200) for job in (younger, older)]
        with patch.object(job_rows, "MOST_BYTES", 200):
            self.assert_locks_in_order(
                older, younger, lambda: outcome_records.record_outcomes(batch, outcomes, batch_size=2)
            )
        self.assertEqual(Job.objects.filter(status=Status.SUCCEEDED).count(), 2)

    def test_who_changes_the_jobs_of_a_batch_otherwise(self) -> None:
        changes: dict[str, Callable[[UUID, list[UUID]], object]] = {
            "keep": lambda batch, ids: transitions.extend_lease(batch, ids, time_limit_s=60),
            "give back lost": lambda batch, ids: transitions.requeue_lost_jobs(Q(batch=batch)),
            "give back stopped": lambda batch, ids: transitions.requeue_stopped_worker_jobs(Q(batch=batch)),
            "cancel": lambda batch, ids: transitions.cancel_jobs_with_parts(ids),
            "mark": lambda batch, ids: row_locks.update_rows(Job.objects.filter(pk__in=ids), published_at=None),
            "delete": lambda batch, ids: row_locks.delete_rows(Job.objects.filter(pk__in=ids)),
        }
        for name, change in changes.items():
            with self.subTest(name):
                older, younger, batch = self.held()
                self.assert_locks_in_order(older, younger, partial(change, batch, [younger.pk, older.pk]))

    def test_who_cancels_waits_for_the_whole_before_an_older_job(self) -> None:
        """As who records both a job and a part of the whole."""
        older, whole = make_job(), make_job(parts=1)
        self.assert_locks_in_order(whole, older, lambda: transitions.cancel_jobs_with_parts([older.pk, whole.pk]))

    def test_rows_that_cannot_be_are_deleted_without_a_statement(self) -> None:
        self.assertEqual(row_locks.delete_rows(Job.objects.filter(pk__in=[])), 0)

    def test_who_inserts_takes_idempotency_keys_in_order(self) -> None:
        jobs = [Job(model="echo", inputs="text", idempotency_key=key) for key in ("b", "a")]

        def insert() -> None:
            try:
                job_rows.insert_jobs([job_rows.convert_job_to_row(job) for job in jobs])
            finally:
                connection.close()

        with ThreadPoolExecutor(1) as threads:
            with transaction.atomic():
                make_job(idempotency_key="a")
                inserting = threads.submit(insert)
                eventually(self.somebody_waits, "the insert waits for a key")
                make_job(idempotency_key="b")
            self.assertIsInstance(inserting.exception(), IntegrityError)

    def somebody_waits(self) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
            )
            return bool(cursor.fetchone()[0])
