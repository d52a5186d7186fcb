from typing import Any
from unittest import TestCase

from inference.worker.maintenance.watchdog import STALLED_S, Watchdog

WORKING = {"waiting": 0, "held": 0, "busy": 0, "ready": 1}


class WatchdogTests(TestCase):
    def reasons(self, *rounds: dict[str, Any] | None) -> list[str]:
        """One look every half of the limit; None for one that finds no broker."""
        dog = Watchdog()
        moments = [index * STALLED_S / 2 for index in range(len(rounds))]
        return [
            dog.find_reason_to_end(**{"now": now, "looped_at": now, **WORKING, **snapshot})
            for now, snapshot in zip(moments, rounds, strict=True)
            if snapshot is not None
        ]

    def test_an_idle_worker_with_an_empty_queue_stays(self) -> None:
        self.assertEqual(set(self.reasons(*[{}] * 10)), {""})

    def test_a_busy_worker_with_a_long_queue_stays(self) -> None:
        self.assertEqual(set(self.reasons(*[{"waiting": 9, "busy": 1, "held": 5}] * 10)), {""})

    def test_a_worker_that_still_loads_its_models_stays(self) -> None:
        self.assertEqual(set(self.reasons(*[{"waiting": 9, "ready": 0}] * 10)), {""})

    def test_a_worker_that_takes_nothing_from_a_full_queue_goes(self) -> None:
        last = self.reasons(*[{"waiting": 9}] * 5)[-1]
        self.assertIn("9 messages wait and it has taken none", last)

    def test_a_pause_shorter_than_the_limit_is_forgiven(self) -> None:
        self.assertEqual(
            set(self.reasons({"waiting": 9}, {"waiting": 9}, {"waiting": 9, "busy": 1}, {"waiting": 9})), {""}
        )

    def test_a_worker_with_a_hanging_event_loop_goes(self) -> None:
        last = self.reasons(*[{"looped_at": 0.0}] * 4)[-1]
        self.assertIn("event loop has not turned for 90 s", last)

    def test_a_worker_that_waited_for_its_broker_or_was_stopped_stays(self) -> None:
        away = [None] * 5
        back = {"looped_at": 0.0, "waiting": 9}  # and connected a moment later
        self.assertEqual(set(self.reasons({}, *away, back, back, {})), {""})

    def test_a_worker_that_does_not_connect_to_its_broker_once_that_is_back_goes(self) -> None:
        away = [None] * 5
        last = self.reasons({}, *away, *[{"looped_at": 0.0}] * 4)[-1]
        self.assertIn("event loop has not turned", last)
