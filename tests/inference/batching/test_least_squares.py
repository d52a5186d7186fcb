from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from inference.batching.least_squares import solve_non_negative
from tests.properties import QUICK

Row = tuple[float, list[float]]  # weight, coefficients
coefficients = st.lists(st.floats(-10, 10).map(lambda value: round(value, 3)), min_size=3, max_size=3)
systems = st.lists(st.tuples(st.floats(0.1, 10), coefficients), min_size=1, max_size=12)


class NonNegativeTests(TestCase):
    @QUICK
    @given(systems)
    def test_no_allowed_step_comes_nearer(self, rows: list[Row]) -> None:
        factors = solve_non_negative(rows, [0.0] * 3, [0.0] * 3, trust=0.01)
        best = _distance(rows, factors)
        for i in range(3):
            for step in (-0.01, 0.01):
                other = [max(0.0, value + step * (at == i)) for at, value in enumerate(factors)]
                self.assertLessEqual(best, _distance(rows, other) * (1 + 1e-6) + 1e-9)
        self.assertGreaterEqual(min(factors), 0.0)

    def test_what_the_rows_do_not_say_is_the_guess(self) -> None:
        factors = solve_non_negative([(1.0, [2.0, 0.0])], [0.0, 0.0], [0.5, 0.25], trust=0.1)
        self.assertAlmostEqual(factors[0], 0.5)
        self.assertAlmostEqual(factors[1], 0.25)


def _distance(rows: list[Row], factors: list[float]) -> float:
    """What is made least: squared distances from 1, and the pull to a guess of 0."""
    pull: float = 0.01 / sum(weight for weight, _ in rows)
    squares = [sum(weight * row[i] ** 2 for weight, row in rows) or 1.0 for i in range(3)]
    missed: float = sum(weight * (1 - sum(map(lambda a, b: a * b, row, factors))) ** 2 for weight, row in rows)
    return missed + pull * sum(square * factor**2 for square, factor in zip(squares, factors, strict=True))
