"""The budget of a request: the time that all its waits may take together.

Each wait also has a limit of its own. Waits for the database, for the broker and for the request's turn are counted. A
wait that the client asked for is not counted, and the budget begins anew after it. Time spent computing is not counted
either. A thread that serves no request has no budget.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator

GRACE_S = 0.5  # the database server cancels a statement and reports it before its client stops waiting
SPENT = "earlier statements of this request took all the time that its answer may take"


class _Own(threading.local):
    left_s = math.inf


_own = _Own()


def read_statement_timeout_setting() -> float:
    """Return how many seconds a statement of this process may take. 0 means as long as it takes."""
    return float(os.environ.get("DATABASE_ANSWER_S", "0"))


class request_budget:  # a class, for the same reason as `counted_wait`
    """The context of one request: all its waits together may take as long as a single statement may, and `GRACE_S`."""

    def __enter__(self) -> None:
        limit_s = read_statement_timeout_setting()
        _own.left_s = limit_s + GRACE_S if limit_s else math.inf

    def __exit__(self, *error: object) -> None:
        _own.left_s = math.inf


def renew_budget() -> None:
    """Begin the budget anew, after a wait that the client asked for.

    A request may then query again, however often it has done so before.
    """
    if _own.left_s < math.inf:
        _own.left_s = read_statement_timeout_setting() + GRACE_S


def get_remaining_s() -> float:
    """Return the seconds that are left of the budget; they are never negative."""
    return max(0.0, _own.left_s)


class counted_wait:  # a class, as it costs half of what a generator costs
    """The context of one wait, whose duration is counted.

    It yields the seconds that the wait may take: `limit_s`, or what is left of the budget.
    """

    def __init__(self, limit_s: float = math.inf) -> None:
        self.limit_s = limit_s

    def __enter__(self) -> float:
        self.began_at = time.monotonic()
        return min(self.limit_s, get_remaining_s())

    def __exit__(self, *error: object) -> None:
        _own.left_s -= time.monotonic() - self.began_at


@contextlib.contextmanager
def lift_budget() -> Iterator[None]:
    """Lift the budget for work that takes longer the larger its request is.

    Each wait of such work has a bound of its own.
    """
    before, _own.left_s = _own.left_s, math.inf
    try:
        yield
    finally:
        _own.left_s = before
