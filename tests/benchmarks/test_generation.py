import json
from unittest import TestCase

from benchmarks.generation.answers import text_of
from benchmarks.generation.dataset import LENGTHS, make_examples


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": text}]}).encode() + b"\n\n"


class ExamplesTest(TestCase):
    def test_the_examples_are_the_same_in_every_run(self) -> None:
        self.assertEqual(make_examples(), make_examples())

    def test_every_block_has_all_lengths(self) -> None:
        limits = [one.limit for one in make_examples()]
        for start in range(0, len(limits), len(LENGTHS)):
            self.assertEqual(sorted(limits[start : start + len(LENGTHS)]), sorted(LENGTHS))


class TextTest(TestCase):
    def test_events_are_put_together_as_far_as_they_have_come_whole(self) -> None:
        body = b"retry: 1000\n\n" + event("") + event("a b") + event(" c")
        self.assertEqual(text_of(body), "a b c")
        self.assertEqual(text_of(body[:-5]), "a b")
        self.assertEqual(text_of(body + b"data: [DONE]\n\n"), "a b c")

    def test_the_end_of_a_stream_does_not_count_twice(self) -> None:
        body = b'data: {"token": {"text": "a b"}}\n\ndata: {"token": {"text": ""}, "generated_text": "a b"}\n\n'
        self.assertEqual(text_of(body), "a b")

    def test_whole_answers_are_read_too(self) -> None:
        self.assertEqual(text_of(json.dumps([{"generated_text": "a"}]).encode()), "a")
        self.assertEqual(text_of(json.dumps({"choices": [{"text": "a"}]}).encode()), "a")

    def test_what_is_no_answer_has_no_text(self) -> None:
        for body in (b"", b"<html>", b'{"error": "x"}', b'data: {"error": "x"}\n\n', b"[]"):
            with self.subTest(body=body):
                self.assertEqual(text_of(body), "")
