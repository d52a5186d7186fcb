"""What a pool child does with a batch that it is not to run."""

from unittest.mock import patch
from uuid import uuid4

from django.test import TransactionTestCase

from inference import errors, rows
from inference.models import Job, Status
from inference.worker import child
from inference.worker.calls import BatchCall


class VerdictTests(TransactionTestCase):
    def test_a_condemned_job_fails_also_where_its_model_is_not_loaded(self):
        job = Job(model="gone", inputs="text")
        rows.insert([job])
        replica = child.Replica(worker=uuid4(), device="cpu")
        call = BatchCall(batch=uuid4(), model="gone", job_ids=(job.pk,), verdict=errors.Crashed.code)
        with patch.object(child, "replica", replica, create=True):
            report = child.run_batch(call)
        job.refresh_from_db()
        self.assertEqual((job.status, job.error_code), (Status.FAILED, errors.Crashed.code))
        self.assertEqual((report.errors, report.calls), ({job.pk: errors.Crashed.code}, 0))
