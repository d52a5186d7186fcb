from unittest import TestCase

from inference.worker.watchdog import STALLED_S, Watchdog

WORKING = {"waiting": 0, "held": 0, "busy": 0, "ready": 1}


class WatchdogTests(TestCase):
    def reasons(self, *rounds: dict) -> list[str]:
        """One look every half of the limit."""
        dog = Watchdog()
        moments = [index * STALLED_S / 2 for index in range(len(rounds))]
        return [
            dog.reason(**{"now": now, "looped_at": now, **WORKING, **facts})
            for now, facts in zip(moments, rounds, strict=True)
        ]

    def test_an_idle_worker_with_an_empty_queue_stays(self):
        self.assertEqual(set(self.reasons(*[{}] * 10)), {""})

    def test_a_busy_worker_with_a_long_queue_stays(self):
        self.assertEqual(set(self.reasons(*[{"waiting": 9, "busy": 1, "held": 5}] * 10)), {""})

    def test_a_worker_that_still_loads_its_models_stays(self):
        self.assertEqual(set(self.reasons(*[{"waiting": 9, "ready": 0}] * 10)), {""})

    def test_a_worker_that_takes_nothing_from_a_full_queue_goes(self):
        last = self.reasons(*[{"waiting": 9}] * 5)[-1]
        self.assertIn("9 messages wait and it has taken none", last)

    def test_a_pause_shorter_than_the_limit_is_forgiven(self):
        self.assertEqual(
            set(self.reasons({"waiting": 9}, {"waiting": 9}, {"waiting": 9, "busy": 1}, {"waiting": 9})), {""}
        )

    def test_a_worker_whose_loop_hangs_goes(self):
        reason = Watchdog().reason(now=1000.0, looped_at=900.0, **WORKING)
        self.assertIn("event loop has not turned for 100 s", reason)
