"""What the charts are drawn from."""

from __future__ import annotations

import datetime
from unittest.mock import patch

from django.test import TestCase

from inference import clock
from inference.figures import sample, series, timeline_marks
from inference.figures.tally_rows import TICK_S, floor_to_tick, make_datetime
from inference.models import Figure, Grain, Job, Status, Worker, WorkerState
from tests.conditions import ago


def make_row(moment: datetime.datetime, model: str = "echo", grain: Grain = Grain.TICK, **tally: object) -> None:
    Figure.objects.create(grain=grain, start=moment, model=model, tally=tally)


class TestSeries(TestCase):
    def test_of_each_range_there_are_points_enough_to_see_and_few_enough_to_draw(self) -> None:
        for name in series.RANGES:
            figures = series.read_series(name)
            self.assertIn(len(figures["times"]), range(60, 241))
            for values in figures["series"].values():
                self.assertEqual(len(values), len(figures["times"]))

    def test_rows_of_every_grain_come_to_the_point_that_they_began_in(self) -> None:
        now_s = floor_to_tick(ago().timestamp(), 10_800)
        make_row(make_datetime(now_s), ended={"succeeded": 1})
        make_row(make_datetime(now_s), grain=Grain.WRITTEN, ended={"succeeded": 2, "failed lost": 1})
        make_row(make_datetime(now_s - 10_800), grain=Grain.THREE_HOURS, ended={"succeeded": 10_800}, model="other")
        make_row(make_datetime(0), grain=Grain.EVER, ended={"succeeded": 999})
        with patch.object(clock, "estimate_now_s", return_value=now_s + 1.0):
            figures, other = series.read_series("month"), series.read_series("month", "other")
        self.assertEqual(figures["ended"], {"succeeded": 10_803, "failed lost": 1})
        self.assertEqual(figures["series"]["succeeded"][-2], 1.0)
        self.assertEqual(other["ended"], {"succeeded": 10_800})

    def test_rows_from_before_the_clock_was_set_back_are_left_out_until_their_time(self) -> None:
        make_row(ago(days=-2), ended={"failed lost": 1})
        make_row(ago(60), ended={"succeeded": 1})
        since = ago(300)
        self.assertEqual(series.count_outcomes_since(since), {"echo": {"succeeded": 1}})
        self.assertEqual(series.sum_figures_since(since), {"echo": {"ended": {"succeeded": 1}}})
        self.assertEqual([ends for _, ends in series.list_outcomes_since(since)["echo"]], [{"succeeded": 1}])

    def test_what_is_the_case_is_sampled_once_a_tick(self) -> None:
        Job.objects.create(model="echo", inputs="x", created_at=ago(30))
        Job.objects.create(model="other", inputs="x", status=Status.RUNNING)
        Worker.objects.create(
            name="w",
            pid=1,
            state=WorkerState.READY,
            replicas_ready=2,
            replicas_busy=1,
            replicas={"0": {"memory": {"echo": 100}}, "1": {"memory": {"echo": 50, "other": 7}}},
        )
        moment = floor_to_tick(ago().timestamp())
        with patch.object(clock, "estimate_now_s", return_value=moment):
            sample.record_sample()
            sample.record_sample()
            values_by_name, other = series.read_series("15m")["series"], series.read_series("15m", "other")["series"]
        point = {name: values[-1] for name, values in values_by_name.items()}
        self.assertEqual((point["queued"], point["running"], point["memory"]), (1, 1, 157))
        self.assertEqual((point["ready"], point["busy"]), (2, 1))
        assert point["oldest_s"]
        self.assertGreaterEqual(point["oldest_s"], 15)
        self.assertEqual(other["queued"][-1], 0)
        self.assertIsNone(values_by_name["queued"][0])

    def test_a_point_that_is_not_over_counts_by_what_has_passed_of_it(self) -> None:
        moment = floor_to_tick(ago().timestamp(), 600)
        make_row(make_datetime(moment), ended={"succeeded": 60})
        with patch.object(clock, "estimate_now_s", return_value=moment + 30.0):
            self.assertEqual(series.read_series("day")["series"]["succeeded"][-1], 2.0)

    def test_the_most_frequent_error_codes_are_listed_over_time(self) -> None:
        moment = floor_to_tick(ago().timestamp())
        failed = {f"failed code{number}": 10 * number + 1 for number in range(series.CODES + 1)}
        make_row(make_datetime(moment - 150), ended={**failed, "succeeded": 99, "expired": 99})
        make_row(make_datetime(moment - 150), model="other", ended={"failed odd one": 30})
        with patch.object(clock, "estimate_now_s", return_value=moment + 1.0):
            figures, other = series.read_series("15m"), series.read_series("15m", "other")
        self.assertEqual(list(figures["errors"]), ["code5", "code4", "code3", "odd one", "code2"])
        self.assertEqual(figures["errors"]["code5"][-11:-8], [51 * 60 / TICK_S, 0, 0])
        self.assertEqual(list(other["errors"]), ["odd one"])

    def test_starts_ends_and_deployments_are_marked(self) -> None:
        with self.settings(RELEASE="one"):
            timeline_marks.mark_worker_start("a")
            timeline_marks.mark_worker_start("b")
        with self.settings(RELEASE="two"):
            timeline_marks.mark_worker_start("a")
        timeline_marks.add_mark(timeline_marks.MarkKind.GONE, "b")
        entries = [(mark["kind"], mark["text"]) for mark in series.read_series("15m")["marks"]]
        started = [("deployed", "one"), ("started", "a"), ("started", "b"), ("deployed", "two"), ("started", "a")]
        self.assertEqual(entries, [*started, ("gone", "b")])
