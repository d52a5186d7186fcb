from django.test import TestCase, override_settings

from inference import errors
from inference.catalog.lookup import get_spec
from inference.models import Bulk
from inference.submission import bulk
from inference.submission.submissions import BulkItem, BulkSubmission


class SizeTests(TestCase):
    @override_settings(MAX_BULK_INPUTS=2)
    def test_a_bulk_of_no_inputs_or_too_many_is_refused_for_every_caller(self) -> None:
        for count in (0, 3):
            items = [BulkItem(inputs=str(number)) for number in range(count)]
            with self.subTest(count), self.assertRaisesRegex(errors.InvalidInput, "from 1 to 2 inputs"):
                bulk.submit(BulkSubmission(spec=get_spec("embeddings"), items=items))
        self.assertFalse(Bulk.objects.exists())
