"""Waiting for what a test expects, with a limit."""

import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")


def eventually(
    condition: Callable[[], T | Literal[False] | None],
    what: str = "",
    *,
    limit_s: float = 20.0,
    every_s: float = 0.02,
) -> T:
    """The first true value of `condition`. Fails after `limit_s`, with `what` was expected and the last value."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what or condition}: not within {limit_s:g} s; last seen: {value!r}")
        time.sleep(every_s)
    return value
