"""The client, which imports nothing of the service, knows its statuses."""

from unittest import TestCase

from api.models import UNFINISHED, BatchStatus
from batch_inference_client import file_batches, service
from inference.models import TERMINAL, WAITING


class StatusTests(TestCase):
    def test_they_are_those_of_the_service(self) -> None:
        self.assertEqual(set(service.WAITING), set(WAITING))
        self.assertEqual(set(service.FINISHED), set(TERMINAL))
        self.assertEqual(set(file_batches.ENDED), set(BatchStatus) - set(UNFINISHED))
