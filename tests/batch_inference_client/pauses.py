"""The pauses of a test's own clients, which take no time; threads that clients of other tests left sleep as ever."""

from __future__ import annotations

import threading
import time
from unittest import TestCase
from unittest.mock import patch


def recorded(case: TestCase) -> list[float]:
    """Of this thread, and of those that begin from now on, until the test ends."""
    slept: list[float] = []
    others, sleep = set(threading.enumerate()) - {threading.current_thread()}, time.sleep

    def pause(seconds: float) -> None:
        if threading.current_thread() in others:
            sleep(seconds)
        else:
            slept.append(seconds)

    case.enterContext(patch("batch_inference_client.service.time.sleep", pause))
    return slept
