"""Attention to the database, the broker and the disk: away, slow, locked, or soon full."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings
from django.db import connection

from inference.status import readiness
from inference.status.attention import locks
from inference.status.attention.item import AttentionItem

SLOW_S = 0.25  # seconds above which an answer to the smallest query is slow
LEFT_BYTES, LEFT_SHARE, PLENTY_BYTES = 2**30, 0.05, 20 * 2**30  # free space: too little, too small a share, enough


def find_slow_database() -> Iterator[AttentionItem]:
    began_at = time.monotonic()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    if (took_s := time.monotonic() - began_at) > SLOW_S:
        text = f"The database took {took_s:.1f} s to answer SELECT 1."
        yield AttentionItem(code="DatabaseSlow", text=text, todo="Check its load, its locks and its disk.")


def find_locked_database() -> Iterator[AttentionItem]:
    """Yield an item if the database answers readers and keeps writers waiting."""
    if why := locks.find_lock_problem():
        yield AttentionItem(
            code="DatabaseLocked",
            text=f"The database accepts no writes: {why}",
            todo="End the program or the transaction that holds the lock. Everything resumes by itself.",
        )


def find_broker_items() -> Iterator[AttentionItem]:
    began_at = time.monotonic()
    problems = list(readiness.find_broker_problems())
    took_s = time.monotonic() - began_at
    for problem in problems:
        todo = "Start it, or check the network to it. Everything resumes within a minute of its return."
        yield AttentionItem(code="BrokerAway", text=problem, todo=todo)
    if not problems and took_s > SLOW_S:
        yield AttentionItem(
            code="BrokerSlow",
            text=f"The broker took {took_s:.1f} s to answer a ping.",
            todo="Check its load, its memory and the network to it.",
        )


def find_full_disks() -> Iterator[AttentionItem]:
    """Yield an item for each disk of this host that is nearly full: that of the data folder or of SQLite's file."""
    folders = {Path(settings.DATA_DIR)}
    if connection.vendor == "sqlite":
        folders.add(Path(connection.settings_dict["NAME"]).parent)
    for folder in sorted(folder for folder in folders if folder.is_dir()):
        usage = shutil.disk_usage(folder)
        share = usage.free / usage.total
        if usage.free < LEFT_BYTES or (share < LEFT_SHARE and usage.free < PLENTY_BYTES):
            yield AttentionItem(
                code="DiskFills",
                text=f"The disk of {folder} has {usage.free / 2**20:,.0f} MiB left, {share:.0%}.",
                todo="Free disk space, or keep finished jobs for fewer days (JOB_RETENTION_DAYS).",
            )
