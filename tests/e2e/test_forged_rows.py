from inference.errors import InvalidInput
from inference.models import Status
from tests.e2e.case import StackCase


class TestForgedRows(StackCase):
    def test_parameters_that_the_model_does_not_allow_are_refused_by_the_worker_too(self) -> None:
        forged = self.stack.jobs.create(model="echo", inputs="x", parameters={"top_k": 10**9})
        honest = self.stack.submit("y")
        job, other = self.stack.finished(forged.pk, honest)
        self.assertEqual((job.status, job.error_code), (Status.FAILED, InvalidInput.code))
        self.assertIn("parameters.top_k", job.error_detail)
        self.assertEqual(other.status, Status.SUCCEEDED)
