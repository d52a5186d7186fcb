from unittest import TestCase

from inference.residency_policy.worker_choice import HELP_LOADS, HELP_S, NEXT_S, should_load

WORKERS = ("w1", "w2", "w3")


def loaders(model: str, *, seen_s: float, waited_s: float = 0.0, having: str = "") -> list[str]:
    """The workers that would load it now."""
    return [
        worker
        for worker in WORKERS
        if worker != having
        and should_load(
            model,
            worker,
            {other: other == having for other in WORKERS if other != worker},
            seen_s=seen_s,
            waited_s=waited_s,
            load_s=100.0,
        )
    ]


class SharesTests(TestCase):
    def test_one_of_several_loads_a_model_at_once_and_the_next_ones_after_it(self) -> None:
        for model in ("a", "b", "c", "d", "e"):
            self.assertEqual([len(loaders(model, seen_s=turn * NEXT_S)) for turn in range(3)], [1, 2, 3])

    def test_models_are_spread_over_the_workers(self) -> None:
        first = {loader for number in range(30) for loader in loaders(f"model{number}", seen_s=0.0)}
        self.assertEqual(first, set(WORKERS))

    def test_what_one_has_is_loaded_by_another_only_when_its_jobs_wait_for_long(self) -> None:
        self.assertEqual(loaders("a", seen_s=99.0, waited_s=HELP_S, having="w1"), [])
        self.assertEqual(loaders("a", seen_s=99.0, waited_s=HELP_LOADS * 100.0, having="w1"), ["w2", "w3"])

    def test_a_worker_alone_loads_whatever_waits(self) -> None:
        self.assertTrue(should_load("a", "w1", {}, seen_s=0.0, waited_s=0.0, load_s=1.0))
