"""A priority has a place wherever one is named."""

import contextlib
import io

from django.test import SimpleTestCase

from api.requests.bodies import PRIORITIES
from api.requests.dialects.base import PRIORITIES_BY_TIER, TIERS
from batch_inference_client.command import main
from inference.broker import messages
from inference.values.priority import Priority


class PriorityTests(SimpleTestCase):
    def test_each_has_a_word_and_a_tier(self) -> None:
        self.assertEqual(list(PRIORITIES.values()), list(Priority))
        self.assertEqual(set(PRIORITIES_BY_TIER.values()), set(Priority))
        self.assertEqual(len(set(TIERS.values())), len(Priority))

    def test_each_has_a_number_of_amqp_in_the_same_order(self) -> None:
        numbers = [messages.AMQP_PRIORITIES[priority] for priority in Priority]
        self.assertEqual(numbers, sorted(set(numbers), reverse=True))

    def test_the_client_s_command_takes_each(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as printed, self.assertRaises(SystemExit):
            main(["map", "--help"])
        self.assertIn("{" + ",".join(PRIORITIES) + "}", printed.getvalue())
