"""Non-negative least squares for a few unknowns: Lawson and Hanson's active set, on the normal equations."""

from collections.abc import Sequence

TOLERANCE = 1e-9  # relative to a column of length 1
ROUNDS = 3  # at most, for each unknown; the method needs about one

Row = tuple[float, Sequence[float]]  # the weight of a row, and its coefficients


def solve_non_negative(
    rows: Sequence[Row], shrink: Sequence[float], guess: Sequence[float], trust: float
) -> list[float]:
    """Return the factors >= 0 whose sum of products with each row comes nearest to 1.

    `shrink` pulls each factor to 0, with that share of the weight that the rows give it: a factor that only repeats
    others is left out. Each factor is also pulled to its `guess`, with the weight of `trust` rows.
    """
    count = len(shrink)
    norms = [sum(weight * row[i] ** 2 for weight, row in rows) ** 0.5 or 1.0 for i in range(count)]
    rows = [(weight, [value / norm for value, norm in zip(row, norms, strict=True)]) for weight, row in rows]
    pull = trust / sum(weight for weight, _ in rows)
    wanted = [sum(weight * row[i] for weight, row in rows) + pull * guess[i] * norms[i] for i in range(count)]
    gram = [[sum(weight * row[i] * row[j] for weight, row in rows) for j in range(count)] for i in range(count)]
    for i in range(count):
        gram[i][i] += shrink[i] + pull
    return [factor / norm for factor, norm in zip(_solve_by_active_set(gram, wanted), norms, strict=True)]


def _solve_by_active_set(gram: list[list[float]], wanted: list[float]) -> list[float]:
    """Solve for the factors by freeing them one after the other.

    Each round frees the most promising factor, solves for the free ones, and binds those again that would become
    negative.
    """
    count = len(wanted)
    factors, free = [0.0] * count, set[int]()
    for _ in range(ROUNDS * count):
        bound = [i for i in range(count) if i not in free]
        slopes = [wanted[i] - sum(a * b for a, b in zip(gram[i], factors, strict=True)) for i in bound]
        steepest = max(slopes, default=0.0)
        if steepest <= TOLERANCE * max(wanted):
            break
        free.add(bound[slopes.index(steepest)])
        factors = _bind_negative_factors(gram, wanted, factors, free)
    return factors


def _bind_negative_factors(
    gram: list[list[float]], wanted: list[float], factors: list[float], free: set[int]
) -> list[float]:
    """Return the solution over the `free` factors, and take those out of `free` that it would make negative."""
    solution = _solve_free_factors(gram, wanted, sorted(free))
    while negative := [i for i in free if solution[i] <= 0.0]:
        steps = {i: factors[i] / (factors[i] - solution[i]) if factors[i] > 0.0 else 0.0 for i in negative}
        first = min(steps, key=steps.__getitem__)
        factors = [old + steps[first] * (new - old) for old, new in zip(factors, solution, strict=True)]
        factors[first] = 0.0
        free.remove(first)
        solution = _solve_free_factors(gram, wanted, sorted(free))
    return solution


def _solve_free_factors(gram: list[list[float]], wanted: list[float], free: list[int]) -> list[float]:
    """Solve for the free factors by Gaussian elimination.

    The matrix is positive definite, so no pivot is sought.
    """
    rows = [[gram[i][j] for j in free] + [wanted[i]] for i in free]
    for k, pivot in enumerate(rows):
        for row in rows[k + 1 :]:
            ratio = row[k] / pivot[k]
            row[k:] = [value - ratio * other for value, other in zip(row[k:], pivot[k:], strict=True)]
    solution = [0.0] * len(wanted)
    for k in range(len(free) - 1, -1, -1):
        known = sum(rows[k][j] * solution[free[j]] for j in range(k + 1, len(free)))
        solution[free[k]] = (rows[k][-1] - known) / rows[k][k]
    return solution
