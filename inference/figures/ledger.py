"""Writes tallies, in the transaction of what they count: what is counted is what was committed, whoever is killed.

A thread that records batches keeps a row a model, and adds to it for as long as the row's tick lasts. Whatever fails, a
row that was given up may have been written or not; the next is a new one, with nothing of it. Others, who end jobs now
and then, write a row each time. `inference.figures.fold` puts them together soon.
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


def forget() -> None:
    """As a new thread."""
    _own.rows.clear()
    _later.tallies.clear()


def tick_of(seconds: float, length_s: int = TICK_S) -> int:
    return int(seconds // length_s) * length_s


def at(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def write(model: str, tally: Tally) -> None:
    """A row of its own."""
    if tally:
        Figure.objects.create(grain=Grain.WRITTEN, start=at(tick_of(clock.time_s())), model=model, tally=tally)


def write_on(model: str, tally: Tally) -> None:
    """Into this thread's row, which is let go where this transaction fails."""
    before, start_s = _own.rows.pop(model, None), tick_of(clock.time_s())
    if before and before.start_s == start_s and _rewrite(before, tally):
        row = before
    else:
        made = Figure.objects.create(grain=Grain.WRITTEN, start=at(start_s), model=model, tally=tally)
        row = _Row(made.pk, start_s, tally)
    transaction.on_commit(lambda: _own.rows.update({model: row}))


def _rewrite(row: _Row, tally: Tally) -> bool:
    """Not where it is put together with others already."""
    tallies.add(row.tally, tally)
    with connection.cursor() as cursor:
        cursor.execute(
            _UPDATE,
            [
                _tally_field.get_db_prep_value(row.tally, connection),
                Figure._meta.pk.get_db_prep_value(row.id, connection),
            ],
        )
        return bool(cursor.rowcount)


def note(model: str, tally: Mapping[str, Any]) -> None:
    """What is no job's outcome, in memory until `flush`: of any thread."""
    with _later.lock:
        tallies.add(_later.tallies.setdefault(model, {}), tally)


def flush() -> None:
    """What failed to be written is kept for the next time; it is bounded by the models there are."""
    with _later.lock:
        found, _later.tallies = _later.tallies, {}
    try:
        with transaction.atomic():
            for model, tally in found.items():
                write(model, tally)
    except Exception:
        for model, tally in found.items():
            note(model, {key: value for key, value in tally.items() if key != "now"})  # which is over by then
        raise
