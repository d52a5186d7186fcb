import random
import statistics
from unittest import TestCase

from benchmarks.workloads import BLOCK, WORKLOADS, essence, is_right, mixed_lengths


class TextsTest(TestCase):
    def test_texts_are_the_same_in_every_run(self) -> None:
        for workload in WORKLOADS.values():
            with self.subTest(workload=workload.name):
                self.assertEqual(workload.texts(), workload.texts())
                self.assertEqual(len(workload.texts()), workload.pool)

    def test_every_fill_mask_text_has_one_mask(self) -> None:
        self.assertEqual({text.count("[MASK]") for text in WORKLOADS["fill"].texts()}, {1})

    def test_every_block_of_mixed_lengths_is_the_same_mix(self) -> None:
        lengths = mixed_lengths(4 * BLOCK, random.Random(1))
        self.assertTrue(all(3 <= length <= 300 for length in lengths))
        for start in range(0, len(lengths), BLOCK):
            self.assertAlmostEqual(statistics.median(lengths[start : start + BLOCK]), 20, delta=3)


class CheckTest(TestCase):
    def test_the_best_answer_is_found_in_every_wrapping(self) -> None:
        answer = {"label": "LABEL_1", "score": 0.5}
        for output in (answer, [answer], [[answer]], {"output": answer}, {"output": [answer, {}]}):
            with self.subTest(output=output):
                self.assertEqual(essence(output), ("LABEL_1", 0.5))

    def test_fill_mask_answers_are_distinguished_by_their_token(self) -> None:
        self.assertEqual(essence([{"score": 0.25, "token": 7, "token_str": "seven"}]), ("seven", 0.25))

    def test_another_label_another_score_and_no_answer_are_wrong(self) -> None:
        expected = ("LABEL_1", 0.5)
        self.assertTrue(is_right(b'[{"label": "LABEL_1", "score": 0.5002}]', expected))
        for body in (
            b'[{"label": "LABEL_0", "score": 0.5}]',
            b'[{"label": "LABEL_1", "score": 0.51}]',
            b"[]",
            b"<html>",
        ):
            with self.subTest(body=body):
                self.assertFalse(is_right(body, expected))

    def test_of_another_precision_the_label_counts(self) -> None:
        for label, right in (("LABEL_1", True), ("LABEL_0", False)):
            body = f'[{{"label": "{label}", "score": 0.6}}]'.encode()
            self.assertEqual(is_right(body, ("LABEL_1", 0.5), of_label=True), right)
