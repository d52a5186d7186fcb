"""The rows of tallies, which are written in the transaction of what they count.

A figure thus counts what was committed, whichever process is killed.

A thread that records batches keeps one row for each model, and adds to it for as long as the row's tick lasts. After a
failure the row is given up, and may have been written or not; the next one is new and contains nothing of it. Other
writers, which end jobs now and then, write a row each time. `inference.figures.rollup` joins the rows soon.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from inference import clock
from inference.figures import tallies
from inference.figures.tallies import Tally
from inference.models import Figure, Grain

TICK_S = 15
_UPDATE = f"UPDATE {Figure._meta.db_table} SET tally = %s WHERE id = %s"  # noqa: S608 - our own name
_tally_field: Any = Figure._meta.get_field("tally")


@dataclass(slots=True)
class _Row:
    id: UUID
    start_s: int
    tally: Tally


class _Own(threading.local):
    def __init__(self) -> None:
        self.rows: dict[str, _Row] = {}


@dataclass(slots=True)
class _Later:
    lock: threading.Lock = field(default_factory=threading.Lock)
    tallies: dict[str, Tally] = field(default_factory=dict)


_own = _Own()
_later = _Later()


def floor_to_tick(seconds: float, length_s: int = TICK_S) -> int:
    return int(seconds // length_s) * length_s


def make_datetime(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def insert_tally(model: str, tally: Tally) -> None:
    """Write a tally as a row of its own."""
    if tally:
        Figure.objects.create(
            grain=Grain.WRITTEN,
            start=make_datetime(floor_to_tick(clock.estimate_now_s())),
            model=model,
            tally=tally,
        )


def add_to_own_row(model: str, tally: Tally) -> None:
    """Add a tally to this thread's row of the model, which is given up if this transaction fails."""
    before, start_s = _own.rows.pop(model, None), floor_to_tick(clock.estimate_now_s())
    if before and before.start_s == start_s and _rewrite(before, tally):
        row = before
    else:
        made = Figure.objects.create(grain=Grain.WRITTEN, start=make_datetime(start_s), model=model, tally=tally)
        row = _Row(made.pk, start_s, tally)
    transaction.on_commit(lambda: _own.rows.update({model: row}))


def _rewrite(row: _Row, tally: Tally) -> bool:
    """Write the row again with the tally added; return False if the row was rolled up already."""
    tallies.merge_tally(row.tally, tally)
    key = Figure._meta.pk.get_db_prep_value(row.id, connection)
    with connection.cursor() as cursor:
        cursor.execute(_UPDATE, [_tally_field.get_db_prep_value(row.tally, connection), key])
        return bool(cursor.rowcount)


def note_tally(model: str, tally: Mapping[str, Any]) -> None:
    """Keep a tally that is no job's outcome in memory until `flush_tallies`; any thread may call this."""
    with _later.lock:
        tallies.merge_tally(_later.tallies.setdefault(model, {}), tally)


def flush_tallies() -> None:
    """Write the tallies that were noted.

    A tally that could not be written is kept for the next time. The number of tallies is bounded by the number of
    models.
    """
    with _later.lock:
        found, _later.tallies = _later.tallies, {}
    try:
        with transaction.atomic():
            for model, tally in found.items():
                insert_tally(model, tally)
    except Exception:
        for model, tally in found.items():
            note_tally(model, {key: value for key, value in tally.items() if key != "now"})  # "now" is over by then
        raise
