"""Wait for what a test expects; and let calls meet.

A wait ends with its condition. Its limit is patience with a slow machine, and no promise of the service: a test that
passes never spends it.
"""

import datetime
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

T = TypeVar("T")
PATIENCE_S = 180.0  # what never comes has not come by then, on the slowest machine that tests are run on


def eventually(
    condition: Callable[[], T | Literal[False] | None],
    what: str = "",
    *,
    every_s: float | None = None,
) -> T:
    """Wait until `condition` returns a true value, and return it.

    It is asked every `every_s` seconds; without them ever more rarely, since what it asks has work to do meanwhile.
    Raises AssertionError with `what` and the last value, once `PATIENCE_S` is over.
    """
    value = wait_for(condition, limit_s=PATIENCE_S, every_s=every_s)
    if not value:
        raise AssertionError(f"{what or condition}: not within {PATIENCE_S:g} s; last seen: {value!r}")
    return value


def wait_for(
    condition: Callable[[], T | Literal[False] | None], *, limit_s: float, every_s: float | None = None
) -> T | Literal[False] | None:
    """Ask `condition` until it returns a true value, for at most `limit_s` seconds. Return what it returned last."""
    started = time.monotonic()  # patience with a slow machine
    while not (value := condition()):
        waited_s = time.monotonic() - started
        if waited_s > limit_s:
            break
        time.sleep(every_s or min(0.1, max(0.01, waited_s / 20)))
    return value


def ago(seconds: float = 0.0, **more: float) -> datetime.datetime:
    """The moment so long before now, or now: for rows, whose ages the service judges by the real clock."""
    from django.utils import timezone

    return timezone.now() - datetime.timedelta(seconds=seconds, **more)


def at_once(calls: Sequence[Callable[[], object]]) -> None:
    """Each in a thread with a database connection of its own, at the same moment. Fails where one does."""
    from django.db import connection

    start, failures = threading.Barrier(len(calls)), list[BaseException]()

    def run(call: Callable[[], object]) -> None:
        try:
            connection.ensure_connection()
            start.wait(PATIENCE_S)
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
