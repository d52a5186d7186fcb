import io
import unittest

from tests import unstable_samples
from tests.runner import Result
from tests.second_look import MOST, Unstable, look_again
from tests.unstable_samples import tries

SAMPLES = unstable_samples.__name__
STOPPED = ("test_fails_first", "test_holds")


def run(suite: unittest.TestSuite, *, failfast: bool = False) -> unittest.TestResult:
    kind = type("Result", (Result,), {"total": suite.countTestCases()})
    return unittest.TextTestRunner(io.StringIO(), failfast=failfast, resultclass=kind).run(suite)


class SecondLookTests(unittest.TestCase):
    def setUp(self) -> None:
        tries.clear()

    def look(self, *names: str) -> tuple[unittest.TestResult, list[Unstable]]:
        """Run samples, and those that failed again."""
        result = run(unittest.TestLoader().loadTestsFromNames([f"{SAMPLES}.{name}" for name in names]))
        return result, look_again(result, run)

    def test_what_holds_by_itself_is_named_with_what_it_said_and_does_not_fail_the_run(self) -> None:
        result, [unstable] = self.look("EndToEnd.test_fails_first", "EndToEnd.test_holds")
        self.assertTrue(result.wasSuccessful())
        self.assertEqual(unstable.name, f"{SAMPLES}.EndToEnd.test_fails_first")
        self.assertRegex(str(unstable), r"(?s)^unstable: \S+test_fails_first failed.*the first try of one")
        self.assertEqual((tries["one"], tries["good"]), (2, 1))

    def test_what_fails_always_fails_the_run(self) -> None:
        result, unstable = self.look("EndToEnd.test_fails_always", "EndToEnd.test_fails_first")
        self.assertEqual([test.id() for test, _ in result.failures], [f"{SAMPLES}.EndToEnd.test_fails_always"])
        self.assertEqual((len(unstable), tries["always"]), (1, 2))

    def test_a_test_of_one_process_is_never_run_again(self) -> None:
        result, unstable = self.look("OneProcess.test_fails_first")
        self.assertEqual((len(result.failures), unstable, tries["alone"]), (1, [], 1))

    def test_a_class_with_a_failed_set_up_runs_again_as_a_whole(self) -> None:
        result, [unstable] = self.look("FirstSetUp")
        self.assertTrue(result.wasSuccessful())
        self.assertEqual((unstable.name, tries["after set-up"]), (f"{SAMPLES}.FirstSetUp", 1))

    def test_a_test_is_one_whatever_number_of_its_parts_failed(self) -> None:
        result, [unstable] = self.look("EndToEnd.test_fails_first_in_parts")
        self.assertTrue(result.wasSuccessful())
        self.assertEqual((unstable.name, tries["a"]), (f"{SAMPLES}.EndToEnd.test_fails_first_in_parts", 2))

    def test_a_second_look_that_is_skipped_shows_nothing(self) -> None:
        result, unstable = self.look("EndToEnd.test_fails_and_is_skipped_then")
        self.assertEqual((len(result.failures), unstable), (1, []))

    def test_a_run_that_was_stopped_fails(self) -> None:
        suite = unittest.TestLoader().loadTestsFromNames([f"{SAMPLES}.EndToEnd.{name}" for name in STOPPED])
        result = run(suite, failfast=True)
        self.assertEqual((look_again(result, run), len(result.failures)), ([], 1))
        self.assertEqual((tries["one"], tries["good"]), (1, 0))

    def test_more_than_three_fail_the_run(self) -> None:
        names = ("EndToEnd.test_fails_always", "EndToEnd.test_fails_first", "EndToEnd.test_fails_first_in_parts")
        result, unstable = self.look(*names, "FirstSetUp")
        self.assertEqual((unstable, tries["always"]), ([], 1))
        self.assertGreater(len(result.failures) + len(result.errors), MOST)
