"""Rows are put together as they age, and nothing is lost or doubled by it, whoever does it."""

from __future__ import annotations

import datetime
from collections import Counter
from typing import Any
from unittest.mock import patch

from django.db.models import QuerySet
from django.test import TransactionTestCase

from inference.figures import rollup, series
from inference.figures.tally_rows import floor_to_tick, make_datetime
from inference.models import Figure, Grain, Mark
from tests.conditions import ago, at_once

MODELS = ("folded", "folded too")  # a thread that a test before has left may write figures of others


def make_row(moment: datetime.datetime, model: str = "folded", count: int = 1, grain: Grain = Grain.WRITTEN) -> None:
    start = make_datetime(floor_to_tick(moment.timestamp()))
    Figure.objects.create(grain=grain, start=start, model=model, tally={"ended": {"succeeded": count}})


def counted(*grains: Grain) -> Counter[str]:
    rows = Figure.objects.filter(grain__in=grains, model__in=MODELS).values_list("model", "tally")
    found = Counter[str]()
    for model, tally in rows:
        found[model] += tally["ended"]["succeeded"]
    return found


class TestFold(TransactionTestCase):
    def test_rows_of_all_writers_become_one_a_model_and_tick_and_are_counted_for_ever(self) -> None:
        moment = ago(minutes=2)
        for _ in range(3):
            make_row(moment)
        make_row(moment, model="folded too")
        make_row(ago(minutes=-2))  # which is not over
        rollup.roll_up_rows()
        self.assertEqual(counted(Grain.TICK), {"folded": 3, "folded too": 1})
        self.assertEqual(Figure.objects.filter(grain=Grain.TICK, model__in=MODELS).count(), 2)
        self.assertEqual(counted(Grain.EVER), {"folded": 3, "folded too": 1})
        self.assertEqual(series.sum_all_time_figures()["folded"]["ended"], {"succeeded": 4})
        make_row(moment)  # of one who was held up
        rollup.roll_up_rows()
        self.assertEqual(counted(Grain.TICK), {"folded": 4, "folded too": 1})
        self.assertEqual(Figure.objects.filter(grain=Grain.TICK, model__in=MODELS).count(), 2)

    def test_they_get_coarser_with_age_and_go_after_a_year(self) -> None:
        for days in (0.1, 0.11, 3, 3.01, 200, 400):
            make_row(ago(days=days))
        Mark.objects.create(kind="started", text="w", at=ago(days=400))
        Mark.objects.create(kind="started", text="w", at=ago(days=300))
        rollup.roll_up_rows()
        self.assertEqual(counted(Grain.TICK, Grain.WRITTEN), {})
        self.assertEqual(counted(Grain.TEN_MINUTES), {"folded": 2})
        self.assertEqual(counted(Grain.THREE_HOURS), {"folded": 4})
        rollup.remove_old_figures()
        self.assertEqual(counted(Grain.THREE_HOURS), {"folded": 3})
        self.assertEqual(counted(Grain.EVER), {"folded": 6})
        self.assertEqual(Mark.objects.count(), 1)

    def test_many_who_do_it_at_once_lose_and_double_nothing(self) -> None:
        for minutes in range(2, 60):
            for _ in range(5):
                make_row(ago(minutes=minutes))
        at_once([rollup.roll_up_rows] * 4)
        rollup.roll_up_rows()
        self.assertEqual(counted(Grain.TICK, Grain.TEN_MINUTES), {"folded": 290})
        self.assertEqual(counted(Grain.EVER), {"folded": 290})

    def test_nothing_is_added_to_a_row_that_another_put_together_meanwhile(self) -> None:
        moment = ago(minutes=2)
        make_row(moment, count=2, grain=Grain.TICK)
        make_row(moment, count=3)
        create = QuerySet.bulk_create

        def and_another_is_quicker(rows: Any, new: Any, **options: Any) -> Any:
            create(rows, new, **options)
            Figure.objects.filter(grain=Grain.TICK).delete()

        with patch.object(QuerySet, "bulk_create", and_another_is_quicker):
            rollup.roll_up_rows()
        self.assertEqual(counted(Grain.WRITTEN), {"folded": 3})  # for the next round
        rollup.roll_up_rows()
        self.assertEqual(counted(Grain.TICK), {"folded": 5})
