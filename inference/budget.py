"""How long a request may wait: each of its waits has a limit, and all of them together have one, which is kept here.

Counted is what it waits for the database, the broker and its turn; not what its client asked to wait for, after which
all begins anew, and not what is computed. Who serves no request has no budget.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator

GRACE_S = 0.5  # the server cancels a statement, and says so, before the client stops waiting
SPENT = "earlier statements of this request took all the time that its answer may take"


class _Own(threading.local):
    left_s = math.inf


_own = _Own()


def answer_limit_s() -> float:
    """How long a statement of this process may take; 0: as long as it takes."""
    return float(os.environ.get("DATABASE_ANSWER_S", "0"))


class of_a_request:  # a class, as `spent`
    """All waits of this thread together may take what a single statement may."""

    def __enter__(self) -> None:
        limit_s = answer_limit_s()
        _own.left_s = limit_s + GRACE_S if limit_s else math.inf

    def __exit__(self, *error: object) -> None:
        _own.left_s = math.inf


def renew() -> None:
    """Begin anew, after a wait that the client asked for: however often a request has looked, it may look again."""
    if _own.left_s < math.inf:
        _own.left_s = answer_limit_s() + GRACE_S


def left_s() -> float:
    """Not negative."""
    return max(0.0, _own.left_s)


class spent:  # a class: half of what a generator costs
    """How long this wait may take: `limit_s`, or what is left. What it takes is counted."""

    def __init__(self, limit_s: float = math.inf) -> None:
        self.limit_s = limit_s

    def __enter__(self) -> float:
        self.began_at = time.monotonic()
        return min(self.limit_s, left_s())

    def __exit__(self, *error: object) -> None:
        _own.left_s -= time.monotonic() - self.began_at


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """For work that is as long as its request is large: each of its waits is bounded for itself."""
    before, _own.left_s = _own.left_s, math.inf
    try:
        yield
    finally:
        _own.left_s = before
