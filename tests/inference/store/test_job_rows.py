import datetime
import uuid
from unittest.mock import patch

from django.contrib.auth.models import User
from django.db import IntegrityError
from django.test import TransactionTestCase
from django.utils import timezone

from inference.models import Bulk, Job, Status
from inference.store import job_rows
from inference.store.job_messages import make_message
from inference.values.priority import Priority

ANY_TIME = timezone.now()  # is only stored and read
CHANGED_LATER = {
    "status": Status.SUCCEEDED, "output": {"score": 0.5}, "error_code": "x", "error_detail": "y",
    "prompt_length": 4, "error_raised": "z", "error_trace": "w", "batch": uuid.uuid4(),
    "batch_size": 3, "attempts": 2, "recoveries": 1, "worker": uuid.uuid4(), "device": "cpu",
    "published_at": ANY_TIME, "started_at": ANY_TIME, "finished_at": ANY_TIME,
}  # fmt: skip


class RowsTests(TransactionTestCase):
    def full(self) -> Job:
        """With a value in every column that a new job may have."""
        owner = User.objects.create(username="owner")
        bulk = Bulk.objects.create(model="echo", total=1)
        return Job(
            model="echo",
            inputs=["ä", {"b": 2**70}],
            parameters={"top_k": 2},
            size=2,
            length=7,
            priority=Priority.LOW,
            published_at=ANY_TIME,
            expires_at=ANY_TIME + datetime.timedelta(seconds=9),
            owner=owner,
            key_start="inf_AbCdEfGh",
            idempotency_key="1:key",
            idempotency_digest="d",
            request_id="r",
            bulk=bulk,
            bulk_index=0,
        )

    def test_a_row_is_what_the_orm_would_have_written(self) -> None:
        for job in (self.full(), Job(model="echo", inputs="text")):
            job_rows.insert_jobs([job_rows.convert_job_to_row(job)])
            self.assert_stored(job)

    def test_what_rows_have_in_common_and_what_they_have_not_is_written(self) -> None:
        different, usual = self.full(), Job(model="echo", inputs="text")
        common = {"model": "echo", "inputs": [1], "idempotency_key": None}
        alike = [Job(**common, parameters={"a": number}, length=number) for number in (1, 2)]
        for jobs in ([different, usual, *alike], [Job(**common), Job(**common)]):
            job_rows.insert_jobs(list(map(job_rows.convert_job_to_row, jobs)))
            for job in jobs:
                self.assert_stored(job)

    def test_a_row_like_another_is_that_of_the_job_it_stands_for(self) -> None:
        full = self.full()
        like = job_rows.make_row_template(job_rows.convert_job_to_row(Job(model="echo")))(
            **{name: vars(full)[name] for name in job_rows.PREPARED}
        )
        self.assertEqual(like.size, job_rows.convert_job_to_row(full).size)
        job_rows.insert_jobs([like])
        self.assert_stored(full)

    def assert_stored(self, job: Job) -> None:
        stored = Job.objects.get(pk=job.pk)
        for field in Job._meta.concrete_fields:
            self.assertEqual(getattr(stored, field.attname), getattr(job, field.attname), field.name)

    def test_one_taken_key_refuses_all(self) -> None:
        jobs = [Job(model="echo", inputs="text", idempotency_key=key) for key in ("a", "b", "a")]
        with self.assertRaises(IntegrityError):
            job_rows.insert_jobs(list(map(job_rows.convert_job_to_row, jobs)))
        self.assertEqual(Job.objects.count(), 0)

    def test_a_statement_is_bounded_in_rows_and_bytes_and_one_larger_row_goes_alone(self) -> None:
        small, large = (
            job_rows.convert_job_to_row(Job(model="echo", inputs="ä" * length)) for length in (500, 600_000)
        )
        self.assertGreater(large.size, 1_200_000)
        with patch.object(job_rows, "MOST_BYTES", 1_000_000):
            groups = list(job_rows.split_by_size([small, large, *[small] * 7], most=5))
        self.assertEqual([len(group) for group in groups], [1, 1, 5, 2])

    def test_all_that_changes_is_read_as_the_orm_reads_it_or_on_first_use(self) -> None:
        job, unfinished = Job(model="echo", inputs="text"), Job(model="echo", inputs="text")
        job_rows.insert_jobs([job_rows.convert_job_to_row(job), job_rows.convert_job_to_row(unfinished)])
        Job.objects.filter(pk=job.pk).update(**CHANGED_LATER)
        found = job_rows.read_outcomes([job.pk, unfinished.pk, uuid.uuid4()])
        self.assertEqual(list(found), [job.pk])
        job_rows.set_job_attributes(job, found[job.pk])
        with self.assertNumQueries(0):  # in the thread that sends it
            make_message(job)
        stored = Job.objects.get(pk=job.pk)
        for field in Job._meta.concrete_fields:
            self.assertEqual(getattr(job, field.attname), getattr(stored, field.attname), field.name)
