"""The objects that the requests of a process share: `process.current` has those of this process.

To make them starts no thread and opens no connection. A thread of theirs starts with its first use, so that a command
that submits a job has the threads that it needs, and any other program has none.
"""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import Any

from django.db.models import Model

from inference.streams.hub import StreamHub
from inference.web_process.finish_listener import Listener
from inference.web_process.queue_counter import QueueCounter
from inference.web_process.rate_limits import Rates
from inference.web_process.request_figures import RequestFigures
from inference.web_process.wait_slots import WaitSlots
from inference.web_process.writer import Writer


class WebProcess:
    def __init__(self) -> None:
        self.wait_slots = WaitSlots()
        self.rates = Rates()
        self.writer = Writer()
        self.listener = Listener()
        self.hub = StreamHub(self.listener)
        # by kind ("model" or "owner"), its key, and priority
        self.queue_counters: dict[tuple[str, Any, int], QueueCounter] = {}
        self.storing: dict[tuple[type[Model], str], Future[Any]] = {}  # rows with an idempotency key
        self.figures = RequestFigures(self.listener.__len__)

    def close(self) -> None:
        """End the streams, whose clients go on at another process, and write what was counted since the last tick."""
        self.hub.end_streams()
        self.figures.write_figures()


current = WebProcess()


def _begin_anew() -> None:
    """Replace the objects, whose threads and locks stayed in the process that this one was forked from."""
    global current  # noqa: PLW0603 - of this process
    current = WebProcess()


os.register_at_fork(after_in_child=_begin_anew)
