"""The command `manage.py run_batches`, the program that works on the batches of /v1/batches."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection
from django.db.models.functions import Now

from api.file_batches.runner import BatchRunner
from inference import row_locks
from inference.catalog import lookup
from inference.connection_retries import Backoff, is_away
from inference.models import Bulk

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
LOOK_SOON_S = 0.02  # so that other programs have the database between two rounds
SEEN_EVERY_S = 15.0


class Command(BaseCommand):
    help = "Work on the batches of /v1/batches until it is stopped (SIGTERM, Ctrl-C): it checks their files, makes jobs"
    help += " of the lines, and writes the files of the answers. One for each service; several do no harm."

    def handle(self, *args: Any, **options: Any) -> None:
        stopping = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Another thread sets the event: the one that waits for it may hold the event's own lock.
            signal.signal(number, lambda *_: threading.Thread(target=stopping.set).start())
        lookup.start_follower()
        logger.info("working on batches")
        threading.Thread(target=update_worked_at, args=(stopping,), name="life", daemon=True).start()
        run_until(stopping)


def run_until(stopping: threading.Event) -> None:
    """Work on batches until the event is set."""
    runner = BatchRunner(stopping)
    backoff = Backoff(first_s=LOOK_EVERY_S, longest_s=30.0)
    pause_s = 0.0
    while not stopping.wait(pause_s):
        try:
            pause_s = LOOK_SOON_S if runner.run_round() else LOOK_EVERY_S
            backoff.reset()
        except Exception as error:
            if not is_away(error):
                raise
            pause_s = backoff.take_next_pause_s()
            logger.warning("batches wait, the database is away: %s", error)
            connection.close()
    runner.close()


def update_worked_at(stopping: threading.Event) -> None:
    """Note in the open bulks that this process works on them, until the event is set.

    A round may take minutes, so this has a thread of its own.
    """
    pause_s = 0.0
    while not stopping.wait(pause_s):
        pause_s = SEEN_EVERY_S
        try:
            row_locks.update_rows(Bulk.objects.filter(is_open=True), worked_at=Now())
        except Exception as error:
            if not is_away(error):
                raise
            connection.close()
