"""The command `manage.py run_batches`, the program that works on the batches of /v1/batches."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection

from api.file_batches.runner import BatchRunner
from inference.catalog import lookup
from inference.failures import Pauses, is_away

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
LOOK_SOON_S = 0.02  # so that other programs have the database between two rounds


class Command(BaseCommand):
    help = "Work on the batches of /v1/batches until it is stopped (SIGTERM, Ctrl-C): it checks their files, makes jobs"
    help += " of the lines, and writes the files of the answers. One for each service; several do no harm."

    def handle(self, *args: Any, **options: Any) -> None:
        stopping = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Another thread sets the event: the one that waits for it may hold the event's own lock.
            signal.signal(number, lambda *_: threading.Thread(target=stopping.set).start())
        lookup.follow()
        logger.info("working on batches")
        run_until(stopping)


def run_until(stopping: threading.Event) -> None:
    """Work on batches until the event is set."""
    runner = BatchRunner(stopping)
    pauses = Pauses(first_s=LOOK_EVERY_S, longest_s=30.0)
    pause_s = 0.0
    while not stopping.wait(pause_s):
        try:
            pause_s = LOOK_SOON_S if runner.run_round() else LOOK_EVERY_S
            pauses.reset()
        except Exception as error:
            if not is_away(error):
                raise
            pause_s = pauses.next_s()
            logger.warning("batches wait, the database is away: %s", error)
            connection.close()
    runner.close()
