"""Ending a pool child that is stuck outside its engine, whose own limit it does not reach."""

from __future__ import annotations

import logging
import os
import signal

from inference.worker.inflight import Batch

logger = logging.getLogger(__name__)

STUCK_S = 30.0  # past the limit that a child keeps to itself, while the database answers: a child may wait for that
KILL_GRACE_S = 1.0  # between asking a stuck child for its stack and killing it


def end_if_stuck(batch: Batch, pid: int, now: float, *, answering_s: float) -> None:
    """`now` is monotonic; `answering_s` says for how long the database has answered."""
    stuck_s = min(now - batch.accepted_at - batch.spec.time_limit_s, answering_s) - STUCK_S
    if stuck_s <= 0:
        return
    if not batch.stuck:
        batch.stuck = True
        logger.error("batch=%s pid=%d is stuck outside its engine, its stack follows, then it is killed", batch.id, pid)
        _signal(pid, signal.SIGUSR2)
    elif stuck_s > KILL_GRACE_S:
        _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        logger.info("pid=%d is gone already", pid)
