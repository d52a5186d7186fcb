"""Waiting for what a test expects, with a limit; and calls that meet."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

T = TypeVar("T")


def eventually(
    condition: Callable[[], T | Literal[False] | None],
    what: str = "",
    *,
    limit_s: float = 20.0,
    every_s: float | None = None,
) -> T:
    """The first true value of `condition`. Fails after `limit_s`, with `what` was expected and the last value. Looks
    every `every_s`; else the more rarely the longer it has waited, as what is asked has work to do meanwhile."""
    started = time.monotonic()
    while not (value := condition()):
        waited_s = time.monotonic() - started
        if waited_s > limit_s:
            raise AssertionError(f"{what or condition}: not within {limit_s:g} s; last seen: {value!r}")
        time.sleep(every_s or min(0.1, max(0.01, waited_s / 20)))
    return value


def at_once(calls: Sequence[Callable[[], object]]) -> None:
    """Each in a thread with a database connection of its own, at the same moment. Fails where one does."""
    from django.db import connection

    start, failures = threading.Barrier(len(calls)), list[BaseException]()

    def run(call: Callable[[], object]) -> None:
        try:
            connection.ensure_connection()
            start.wait(20)
            call()
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise AssertionError(failures)
