"""The rollup of rows as they age: those of all writers into one, then those of short times into ones of longer times.

Several processes may roll up at once: each row is added to its target by the process that deletes it.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from django.db import transaction
from django.db.models.functions import Now

from inference import row_locks
from inference.figures import tallies
from inference.figures.tallies import Tally
from inference.figures.tally_rows import TICK_S, floor_to_tick, make_datetime
from inference.models import Figure, Grain, Mark

MOST = 500  # rows that one transaction rolls up
KEPT = datetime.timedelta(days=366)
LENGTH_S = {Grain.TICK: TICK_S, Grain.TEN_MINUTES: 600, Grain.THREE_HOURS: 10_800}


@dataclass(frozen=True, slots=True)
class Step:
    source: Grain
    target: Grain
    after: datetime.timedelta


STEPS = (
    Step(Grain.WRITTEN, Grain.TICK, datetime.timedelta(seconds=2 * TICK_S)),
    Step(Grain.TICK, Grain.TEN_MINUTES, datetime.timedelta(minutes=30)),
    Step(Grain.TEN_MINUTES, Grain.THREE_HOURS, datetime.timedelta(days=2)),
)
Key = tuple[Grain, datetime.datetime, str]  # grain, start and model of a row that others are added to
SINCE_EVER = make_datetime(0)


def roll_up_rows() -> None:
    for step in STEPS:
        while _roll_up_some_rows(step) == MOST:
            pass


def remove_old_figures() -> None:
    """Delete figures and marks that are older than a year; `Grain.EVER` goes on counting these figures."""
    old = Now() - KEPT
    row_locks.delete_rows(Figure.objects.filter(grain=Grain.THREE_HOURS, start__lt=old))
    row_locks.delete_rows(Mark.objects.filter(at__lt=old))


def _roll_up_some_rows(step: Step) -> int:
    """Roll up some rows of a step, and return how many these were.

    It returns 0 and rolls up none if another process rolled up their target first: the next round finds the rows again.
    """
    with transaction.atomic():
        old = Figure.objects.filter(grain=step.source, start__lt=Now() - step.after).order_by("start", "pk")
        found = list(old.select_for_update(skip_locked=True)[:MOST])
        if found:
            sums: dict[Key, Tally] = {}
            for figure in found:
                for key in _list_target_keys(step, figure):
                    tallies.merge_tally(sums.setdefault(key, {}), figure.tally)
            if not _add_sums(sums):
                transaction.set_rollback(True)
                return 0
            Figure.objects.filter(pk__in=[figure.pk for figure in found]).delete()
    return len(found)


def _list_target_keys(step: Step, figure: Figure) -> list[Key]:
    length_s = LENGTH_S[step.target]
    targets = [(step.target, make_datetime(floor_to_tick(figure.start.timestamp(), length_s)), figure.model)]
    return [*targets, (Grain.EVER, SINCE_EVER, figure.model)] if step.source == Grain.WRITTEN else targets


def _add_sums(sums: dict[Key, Tally]) -> bool:
    """Add the sums to the rows of their keys, which are made where they are missing.

    Each process adds to the row that is there, whichever process made it. The result is False if such a row was there
    and was rolled up itself before it could be locked. All processes make the rows in the same order, so that no two
    wait for each other.
    """
    new = [Figure(grain=grain, start=start, model=model, tally={}) for grain, start, model in sorted(sums)]
    Figure.objects.bulk_create(new, ignore_conflicts=True)
    grains, starts, models = (set(each) for each in zip(*sums, strict=True))
    there = Figure.objects.filter(grain__in=grains, start__in=starts, model__in=models).order_by("pk")
    changed = []
    for figure in there.select_for_update():
        if more := sums.get((Grain(figure.grain), figure.start, figure.model)):
            tallies.merge_tally(figure.tally, more)
            changed.append(figure)
    Figure.objects.bulk_update(changed, ["tally"])
    return len(changed) == len(sums)
