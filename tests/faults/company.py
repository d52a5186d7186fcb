"""Row 48: a transformers model answers a crowd while jobs join and are cancelled, and children and workers are killed:
each answer is the one that `generate` gives to its prompt alone. Half of the prompts have a grammar.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from random import Random
from typing import Any
from uuid import UUID

from inference.models import Job, Status
from tests.faults import greedy
from tests.faults.generating import Generating, Reader
from tests.faults.service import Service
from tests.faults.trial import Trial

LIMIT_S = 300.0  # also for a model of some size on a busy machine


class InCompany(Generating):
    """Every third job is read as a stream."""

    row, title, ci, full = "48", "a transformers model in company: cancels, kills; answers as generate alone", 1, 25
    takes_s, shares = 25.0, False
    model = "greedy"
    options = {"environment": {"MAX_ESTIMATED_WAIT_S": "0"}}  # its first answers tell little of its speed
    settle_limit_s = recovery_limit_s = LIMIT_S
    JOBS, CANCELS = 48, 8  # 40 answers at least to compare
    PROMPTS = 10  # of a trial, each with answers of several lengths
    CROWD = 24  # at once

    @contextlib.contextmanager
    def service(self) -> Iterator[Service]:
        with greedy.folder() as folder:
            self.reference = greedy.Reference(folder)
            models, replicas = greedy.CATALOG.format(folder=folder), 1 if self.quick and not greedy.GIVEN else 2
            with self.make(models=models, replicas=replicas) as service:
                yield service

    def trial(self, trial: Trial) -> None:
        self.prepare(trial)
        strikes = ((self.kill_child,), (self.kill_worker,), (self.kill_child, self.kill_worker))[trial.number % 3]
        moments = dict(zip(sorted(trial.random.sample(range(self.JOBS), len(strikes))), strikes, strict=True))
        cancels = trial.random.sample(range(self.JOBS), self.CANCELS)
        for number in range(self.JOBS):
            self.join(trial)
            if number in cancels:
                self.cancel(trial, trial.random.choice(list(self.requests)))
            if number in moments:
                trial.pause(0.0, 0.2)
                moments[number](trial)

    def prepare(self, trial: Trial) -> None:
        trial.service.whole_again()
        trial.right = is_an_answer
        self.prompts = trial.random.sample(greedy.prompts(), self.PROMPTS)
        self.requests: dict[UUID, tuple[str, int]] = {}  # the prompt, and how many tokens at most
        self.readers: list[Reader] = []

    def join(self, trial: Trial) -> None:
        """One job more, once there are less than a crowd."""
        trial.until(lambda: trial.service.unfinished(self.requests) < self.CROWD, "some are answered", LIMIT_S)
        job_id = self.submit_prompt(trial, *self.draw(trial.random))
        if len(self.requests) % 3 == 0:
            self.readers.append(Reader([trial.service.port], job_id, limit_s=LIMIT_S))

    def draw(self, rng: Random) -> tuple[str, int]:
        return rng.choice(self.prompts), rng.randint(greedy.SHORTEST, greedy.LONGEST)

    def submit_prompt(self, trial: Trial, prompt: str, most: int, *outcomes: str) -> UUID:
        parameters = {
            "max_new_tokens": most,
            "do_sample": False,
            "return_full_text": False,
            **greedy.find_grammar(prompt),
        }
        job_id = trial.submit(prompt, *outcomes, model="greedy", parameters=parameters)
        self.requests[job_id] = prompt, most
        return job_id

    def kill_child(self, trial: Trial) -> None:
        os.kill(trial.random.choice(trial.service.replica_pids()), signal.SIGKILL)
        trial.broken()

    def kill_worker(self, trial: Trial) -> None:
        trial.service.restart("worker1")
        trial.broken()

    def after(self, trial: Trial) -> None:
        super().after(trial)
        for job in trial.service.jobs.filter(pk__in=self.requests, status=Status.SUCCEEDED):
            self.compare_row(trial, job)
        texts = {self.reference.text(prompt, greedy.LONGEST) for prompt in self.prompts}
        trial.expect(len(texts) > self.PROMPTS // 2, "the model answers most prompts alike: nothing was compared")

    def compare_row(self, trial: Trial, job: Job) -> None:
        found, text = job.output[0]["generated_text"], self.expected(trial, job.pk)
        trial.expect(found == text, f"{job.pk} is answered {found!r:.200}, alone {text!r:.200}")

    def expected(self, trial: Trial, job_id: UUID) -> str:
        return self.reference.text(*self.requests[job_id])


def is_an_answer(_: Any, output: Any) -> bool:
    """`after` compares it."""
    return isinstance(output[0]["generated_text"], str)
