"""The command `manage.py deliver_webhooks`, the program that notifies clients' servers of finished jobs."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection

from inference.connection_retries import Backoff, is_away
from inference.models import Webhook
from inference.webhooks import delivery
from inference.webhooks.outbound_post import Resolver

logger = logging.getLogger(__name__)

AT_ONCE = 8  # deliveries, each in a thread of its own
LOOK_EVERY_S = 1.0
RENEW_EVERY_S = 60.0


class Command(BaseCommand):
    help = "Deliver webhooks until it is stopped (SIGTERM, Ctrl-C): attempts that run are finished first."

    def handle(self, *args: Any, **options: Any) -> None:
        stopping = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Another thread sets the event: the one that waits for it may hold the event's own lock.
            signal.signal(number, lambda *_: threading.Thread(target=stopping.set).start())
        logger.info("delivering webhooks, at most %d at a time", AT_ONCE)
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="webhook") as pool:
            _deliver_until(stopping, pool, Resolver())


def _deliver_until(stopping: threading.Event, pool: ThreadPoolExecutor, resolver: Resolver) -> None:
    """Deliver notices until the event is set.

    No more notices are taken than there are free threads, so that a leased notice never waits.
    """
    running: dict[Future[None], str] = {}  # the deliveries that run, with the host that each calls
    backoff = Backoff(first_s=LOOK_EVERY_S, longest_s=30.0)
    pause_s, renewed_at = LOOK_EVERY_S, float("-inf")
    while not stopping.wait(0.0 if running else pause_s):
        pause_s = LOOK_EVERY_S
        try:
            if time.monotonic() > renewed_at + RENEW_EVERY_S and not delivery.hasten_future_webhooks():
                renewed_at = time.monotonic()
            taken = delivery.lease_due_webhooks(
                AT_ONCE - len(running), Counter(running.values()), of_one_host=AT_ONCE // 2
            )
            backoff.reset()
        except Exception as error:
            if not is_away(error):
                raise
            taken, pause_s = [], backoff.take_next_pause_s()
            logger.warning("no webhooks are delivered, the database is away: %s", error)
            connection.close()
        running |= {pool.submit(_deliver, webhook, resolver): delivery.parse_host(webhook.url) for webhook in taken}
        if running:
            done = wait(running, LOOK_EVERY_S, return_when="FIRST_COMPLETED").done
            running = {future: host for future, host in running.items() if future not in done}


def _deliver(webhook: Webhook, resolver: Resolver) -> None:
    """Deliver one notice; if its outcome cannot be recorded, it is due again when its lease is over."""
    try:
        delivery.deliver_webhook(webhook, resolver)
    except Exception:
        logger.exception("webhook=%s failed, it is due again in %g s", webhook.pk, delivery.LEASE_S)
    finally:
        connection.close()
