"""The waits of a request, counted together."""

import math
import os
import threading
import time
from unittest import TestCase
from unittest.mock import patch

from inference import budget

LIMIT = patch.dict(os.environ, DATABASE_ANSWER_S="4")


class BudgetTests(TestCase):
    def setUp(self) -> None:
        self.now = 100.0
        self.enterContext(patch.object(time, "monotonic", lambda: self.now))
        self.enterContext(LIMIT)

    def wait(self, took_s: float, limit_s: float = math.inf) -> float:
        with budget.counted_wait(limit_s) as granted_s:
            self.now += took_s
        return granted_s

    def test_what_one_wait_took_the_next_has_no_more(self) -> None:
        with budget.request_budget():
            self.assertEqual(self.wait(3.0), 4.0 + budget.GRACE_S)
            self.assertEqual(self.wait(1.0, limit_s=2.5), 1.5)
            self.assertEqual(self.wait(9.0, limit_s=0.1), 0.1)
            self.assertEqual((self.wait(1.0), budget.get_remaining_s()), (0.0, 0.0))

    def test_the_next_request_of_a_thread_begins_anew(self) -> None:
        for _ in range(2):
            with budget.request_budget():
                self.assertEqual(self.wait(9.0), 4.5)

    def test_what_is_as_long_as_its_request_is_large_does_not_count(self) -> None:
        with budget.request_budget():
            with budget.lift_budget():
                self.assertEqual(self.wait(9.0), math.inf)
            self.assertEqual(budget.get_remaining_s(), 4.5)

    def test_it_begins_anew_after_the_wait_that_the_client_requested(self) -> None:
        with budget.request_budget():
            self.wait(9.0)
            budget.renew_budget()
            self.assertEqual(budget.get_remaining_s(), 4.5)
            with budget.lift_budget():
                budget.renew_budget()
                self.assertEqual(budget.get_remaining_s(), math.inf)
        budget.renew_budget()
        self.assertEqual(budget.get_remaining_s(), math.inf)

    def test_who_serves_no_request_has_no_budget(self) -> None:
        found: list[float] = []
        with budget.request_budget():
            thread = threading.Thread(target=lambda: found.append(budget.get_remaining_s()))
            thread.start()
            thread.join()
        self.assertEqual([*found, self.wait(9.0), self.wait(1.0, limit_s=2.5)], [math.inf, math.inf, 2.5])

    def test_where_a_statement_may_take_as_long_as_it_takes_so_may_a_request(self) -> None:
        with patch.dict(os.environ, DATABASE_ANSWER_S="0"), budget.request_budget():
            self.assertEqual(self.wait(9.0), math.inf)
