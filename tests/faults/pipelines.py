"""The kills, crashes and poison of rows 1, 2 and 7 once more, on a transformers model."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import tiny_models
from tests.faults.engines import POISON
from tests.faults.fault import Fault
from tests.faults.service import Service
from tests.faults.trial import Trial

TASK = "text-classification"
CATALOG = """
[tiny]
engine = "tests.faults.poisoned:PoisonedPipeline"
task = "{task}"
model = "{folder}"
max_batch_size = 8
time_limit_s = 20
"""
JOBS = 40
TOLERANCE = 1e-4


class Transformers(Fault):
    row, title, ci, full = "1 2 7", "worker killed, child killed, poison: on a transformers model", 1, 9
    takes_s = 18.0
    chunk = 9
    model = "tiny"
    recovery_limit_s = 90.0  # the new processes import torch first

    @contextlib.contextmanager
    def service(self) -> Iterator[Service]:
        with tempfile.TemporaryDirectory() as folder:
            tiny_models.build(TASK, Path(folder))
            with self.make(models=CATALOG.format(task=TASK, folder=folder)) as service:
                yield service

    def trial(self, trial: Trial) -> None:
        trial.service.whole_again()
        texts = [f"the {word} dog {number} is good" for number, word in enumerate(tiny_models.WORDS * 3)][:JOBS]
        alone = self.answers_alone(trial, texts)
        trial.right = lambda text, output: close(output, alone[text])
        fault = (self.kill_worker, self.kill_child, self.poison)[trial.number % 3]
        trial.submit_together(texts, model="tiny")
        fault(trial)
        trial.broken()

    def answers_alone(self, trial: Trial, texts: list[str]) -> dict[str, Any]:
        """What the model says to each text, asked one at a time."""
        answers = {}
        for text in texts:
            job_id = trial.service.submit(text, model="tiny")
            answers[text] = trial.service.finished(job_id)[0].output
            trial.accepted[job_id] = text
            trial.statuses[202] += 1
        return answers

    def kill_worker(self, trial: Trial) -> None:
        trial.pause(0.0, 0.3)
        trial.service.restart("worker1")

    def kill_child(self, trial: Trial) -> None:
        trial.pause(0.0, 0.3)
        os.kill(trial.random.choice(trial.service.replica_pids()), signal.SIGKILL)

    def poison(self, trial: Trial) -> None:
        trial.submit(f"the {POISON} dog", "crashed", model="tiny")


def close(output: Any, alone: Any) -> bool:
    """Equal labels, and equal scores but for rounding."""
    pairs = zip(output, alone, strict=True)
    return all(
        one["label"] == other["label"] and math.isclose(one["score"], other["score"], abs_tol=TOLERANCE)
        for one, other in pairs
    )
