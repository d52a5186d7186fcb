"""What a job generated, out of an output that a worker of an earlier version stored."""

from typing import Any

from django.test import SimpleTestCase

from inference.models import Job
from inference.streams.texts import Prompt, extract_generated_text

TO_GO_ON = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "All"}]


class PromptTests(SimpleTestCase):
    def test_it_is_what_an_answer_with_the_full_text_begins_with(self) -> None:
        cases: tuple[tuple[Any, dict[str, Any], str], ...] = (
            ("All", {}, "All"),
            ("All", {"return_full_text": True}, "All"),
            ("All", {"return_full_text": False}, ""),
            (TO_GO_ON, {}, "All"),
            (TO_GO_ON, {"continue_final_message": True}, "All"),
            (TO_GO_ON, {"continue_final_message": False}, ""),
            (TO_GO_ON[:1], {}, ""),
            ([], {}, ""),
            (["All"], {}, ""),
            ({"All": 1}, {}, ""),
        )
        for inputs, parameters, prompt in cases:
            job = Job(inputs=inputs, parameters=parameters, output=[{"generated_text": "All right then"}])
            with self.subTest(inputs=inputs, parameters=parameters):
                text = extract_generated_text(job, Prompt.from_inputs(inputs, parameters))
                self.assertEqual(text, "All right then".removeprefix(prompt))

    def test_what_does_not_begin_with_it_stays_whole(self) -> None:
        self.assertEqual(Prompt.from_inputs("All", {}).remove_from("Nothing"), "Nothing")
