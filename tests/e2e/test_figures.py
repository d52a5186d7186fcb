"""What the charts are drawn from agrees with the rows after a load with failures, kills and restarts: to the job for
outcomes, within one interval for times."""

from __future__ import annotations

import itertools
import os
import signal

from django.db.models import QuerySet

from inference.models import TERMINAL, Figure, Grain, Job
from tests.conditions import eventually
from tests.e2e.case import StackCase
from tests.faults.load import Load
from tests.inference.figures.agreement import misplaced, of_figures, of_rows

MODELS = """
[echo]
engine = "tests.echo:EchoEngine"
max_batch_size = 8
time_limit_s = 180
options = { fixed_ms = 50 }
"""
FAILS = ("exception", "nan", "invalid", "crash")
INTERVALS = 3  # that the load goes on in


class TestFigures(StackCase):
    options = {"models": MODELS, "environment": {"WORKER_HEARTBEAT_S": "0.5"}}

    def test_they_agree_with_the_rows(self) -> None:
        numbers = itertools.count()
        with Load(self.stack.port, lambda: self.inputs(next(numbers)), per_s=10) as load:
            self.passed(1)
            os.kill(self.stack.replica_pids()[0], signal.SIGKILL)
            self.passed(2)
            self.stack.children["worker1"].kill()
            self.stack.start_worker()
            self.stack.children["web"].stop()
            self.stack.start_web()
            self.stack.ready()
            self.passed(INTERVALS)
            eventually(lambda: len(load.result.accepted) > 20 * len(FAILS), "each failure has happened")
        eventually(lambda: not self.jobs().exclude(status__in=TERMINAL).exists(), "all have ended")
        outcomes = of_rows(self.jobs())
        self.assertGreater(outcomes[("echo", "succeeded")], 19)
        self.assertGreater(len(outcomes), len(FAILS) - 1)
        self.assertEqual(of_figures(self.stack.alias), outcomes)
        self.assertEqual(misplaced(self.stack.alias), {})

    def inputs(self, number: int) -> object:
        text = f"text {number}"
        return {"text": text, "fail": FAILS[number // 20 % len(FAILS)]} if number % 20 == 19 else text

    def jobs(self) -> QuerySet[Job]:
        return Job.objects.using(self.stack.alias)

    def passed(self, intervals: int) -> None:
        """The load has gone on for as many, of which the first and the last were begun."""
        starts = Figure.objects.using(self.stack.alias).filter(model="echo").exclude(grain=Grain.EVER)
        eventually(lambda: starts.values("start").distinct().count() >= intervals, "time has passed")
