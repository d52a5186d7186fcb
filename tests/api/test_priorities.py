"""A priority has a place wherever one is named."""

import contextlib
import io
from pathlib import Path

from django.conf import settings
from django.test import SimpleTestCase

from api.requests.bodies import PRIORITIES
from batch_inference_client.command import main
from inference.broker import messages
from inference.values.priority import Priority

API_PAGE = Path(settings.BASE_DIR, "docs", "reference", "api.md")


class PriorityTests(SimpleTestCase):
    def test_each_has_a_word_that_the_docs_name(self) -> None:
        self.assertEqual(list(PRIORITIES.values()), list(Priority))
        row = next(line for line in API_PAGE.read_text().splitlines() if line.startswith("| `priority` |"))
        for word in PRIORITIES:
            self.assertIn(f"`{word}`", row)

    def test_each_has_a_number_of_amqp_in_the_same_order(self) -> None:
        numbers = [messages.AMQP_PRIORITIES[priority] for priority in Priority]
        self.assertEqual(numbers, sorted(set(numbers), reverse=True))

    def test_the_client_s_command_takes_each(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as printed, self.assertRaises(SystemExit):
            main(["map", "--help"])
        self.assertIn("{" + ",".join(PRIORITIES) + "}", printed.getvalue())
