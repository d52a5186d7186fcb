from typing import Any

from django.test import TestCase

from inference.models import Job


class JSONFieldTests(TestCase):
    def test_values_come_back_as_they_were(self) -> None:
        values: tuple[Any, ...] = (
            None, "text", "", 0, 1.5, True, [], {}, ["é", {"a": [1, None]}], "\u2028", 2**63 - 1, -1.25e-7,
        )  # fmt: skip
        for value in values:
            with self.subTest(value):
                job = Job.objects.create(model="m", inputs=value if value is not None else "x", output=value)
                self.assertEqual(Job.objects.get(pk=job.pk).output, value)

    def test_an_integer_beyond_64_bits_does_not_fail(self) -> None:
        job = Job.objects.create(model="m", inputs=[10**30])
        self.assertEqual(Job.objects.get(pk=job.pk).inputs, [1e30])

    def test_parts_of_a_document_can_be_queried(self) -> None:
        Job.objects.create(model="m", inputs="x", parameters={"top_k": 3, "mode": "fast"})
        self.assertEqual(Job.objects.filter(parameters__top_k=3).count(), 1)
        self.assertEqual(Job.objects.values_list("parameters__mode", flat=True).get(), "fast")

    def test_what_could_be_stored_and_then_not_be_read_is_refused(self) -> None:
        with self.assertRaises(UnicodeEncodeError):
            Job.objects.create(model="m", inputs=["\ud800"])
