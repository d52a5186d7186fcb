import unittest
from unittest.mock import Mock

from tests.faults import command
from tests.faults.table import Tally
from tests.second_look import MOST


def row(number: int, *problems: str, trials: int = 1) -> Tally:
    return Tally(row=str(number), fault="a fault", stack="sqlite and redis", trials=trials, problems=list(problems))


class SecondLookTests(unittest.TestCase):
    def test_a_row_that_holds_by_itself_is_unstable_and_no_problem(self) -> None:
        played = [row(1), row(2, "a job is lost")]
        play = Mock(return_value=[row(2)])
        [unstable] = command.look_again(played, play)
        self.assertEqual([call.args[0].row for call in play.mock_calls], ["2"])
        self.assertEqual([tally.problems for tally in played], [[], []])
        self.assertRegex(str(unstable), r"(?s)unstable: sqlite and redis, row 2, a fault failed.*a job is lost")

    def test_a_row_that_fails_again_or_is_not_played_is_a_problem(self) -> None:
        for again in ([row(2, "again")], [], [row(2, trials=0)]):
            with self.subTest(again=again):
                played = [row(2, "a job is lost")]
                self.assertEqual(command.look_again(played, Mock(return_value=again)), [])
                self.assertEqual(played[0].problems, ["a job is lost"])

    def test_a_job_that_was_lost_or_recorded_twice_is_never_forgiven(self) -> None:
        for harm in ("lost", "recorded_twice"):
            with self.subTest(harm):
                played, play = [row(1, "late"), row(2, harm)], Mock()
                setattr(played[1], harm, 1)
                self.assertEqual(command.look_again(played, play), [])
                play.assert_not_called()

    def test_more_than_three_rows_are_problems(self) -> None:
        played, play = [row(number, "a job is lost") for number in range(MOST + 1)], Mock()
        self.assertEqual(command.look_again(played, play), [])
        play.assert_not_called()
