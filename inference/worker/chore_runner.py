"""The recurring chores of a worker: a chore that fails does not end its thread."""

import logging
from collections.abc import Callable

from django.db import connection

from inference.connection_retries import is_away
from inference.errors import BrokerUnavailable
from inference.telemetry import logs

logger = logging.getLogger(__name__)


def run_chore(chore: Callable[[], object], node: str) -> bool:
    """Run a chore for the worker `node` and log what it raises. Return True if it raised nothing.

    A chore that failed is run again in the next round.
    """
    try:
        with logs.bind_ids():  # the log context that the chore sets ends with it
            chore()
    except Exception as error:
        connection.close()
        if isinstance(error, BrokerUnavailable) or is_away(error):
            logger.warning("worker=%s %s waits for its next round: %s", node, chore.__name__, error)
        else:
            logger.exception("worker=%s %s failed", node, chore.__name__)
        return False
    return True
