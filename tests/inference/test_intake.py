import threading
from unittest.mock import patch

from django.db import DatabaseError, IntegrityError, connection, transaction
from django.test import TransactionTestCase
from django.utils import timezone

from inference import errors, intake
from inference.models import Job
from tests.conditions import eventually
from tests.messages import messages_for

MODEL = "embeddings"


def new_job(**values) -> Job:
    return Job(**{"model": MODEL, "inputs": "text", "published_at": timezone.now(), **values})


class IntakeTests(TransactionTestCase):
    def setUp(self):
        self.intake = intake.Intake()

    def accept_together(self, jobs: list[Job]) -> list[Exception | None]:
        """Submit from many threads at once; what each of them got."""
        results: list = [None] * len(jobs)

        def accept(index: int, job: Job) -> None:
            try:
                self.intake.accept(job)
            except Exception as error:
                results[index] = error

        threads = [threading.Thread(target=accept, args=pair) for pair in enumerate(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def test_jobs_that_arrive_together_are_all_written_and_sent(self):
        jobs = [new_job(inputs=f"text {index}", parameters={"k": index}) for index in range(20)]
        self.assertEqual(self.accept_together(jobs), [None] * 20)
        stored = {job.pk: job for job in Job.objects.all()}
        for job in jobs:
            self.assertEqual((stored[job.pk].inputs, stored[job.pk].parameters), (job.inputs, job.parameters))
        eventually(lambda: all(messages_for(job) == 1 for job in jobs), "their messages follow the rows")

    def test_a_row_that_cannot_be_written_keeps_no_other_out(self):
        results = self.accept_together([new_job(idempotency_key="1:same") for _ in range(5)] + [new_job()])
        self.assertEqual(sum(isinstance(result, IntegrityError) for result in results), 4)
        self.assertEqual(Job.objects.count(), 2)

    def test_a_database_that_is_away_refuses_with_a_retryable_error_and_the_next_job_is_accepted(self):
        with patch.object(intake, "insert", side_effect=DatabaseError("away")):
            (error,) = self.accept_together([new_job()])
        self.assertIsInstance(error, errors.StoreUnavailable)
        self.assertTrue(error.retryable)
        self.assertGreater(error.retry_after_s, 0)
        self.assertEqual(self.accept_together([new_job()]), [None])

    def test_a_submitting_thread_opens_no_database_connection(self):
        opened: list = []

        def accept() -> None:
            self.intake.accept(new_job())
            opened.append(connection.connection)

        thread = threading.Thread(target=accept)
        thread.start()
        thread.join()
        self.assertEqual(opened, [None])

    def test_a_job_in_the_callers_transaction_is_sent_when_it_commits(self):
        job = new_job()
        with transaction.atomic():
            self.intake.accept(job)
            self.assertEqual(messages_for(job), 0)
        self.assertEqual(messages_for(job), 1)

    def test_a_job_of_a_rolled_back_transaction_is_never_sent(self):
        job = new_job()
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            self.intake.accept(job)
            raise ZeroDivisionError
        self.assertEqual((Job.objects.count(), messages_for(job)), (0, 0))
