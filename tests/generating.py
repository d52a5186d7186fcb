"""Generates text without a model, and tells it piece by piece as a pool child does.

As a program, `python -m tests.generating`, it serves the model `words` of `MODELS` in place of a worker: `pieces` of a
prompt, as many as its `max_new_tokens`. One that begins with "held" has `FEW`, and no more while there is a file `held`
in DATA_DIR.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from tests import echo
from tests.conditions import PATIENCE_S

MODELS = """
[words]
engine = "tests.echo:EchoEngine"
task = "text-generation"
max_queued = 10000
"""
PACE_S = 0.05  # between pieces
FEW = 3
PIECES = 20  # where the request does not say how many


def pieces(prompt: str, count: int) -> list[str]:
    """A function of the prompt, with characters of one, two, three and four bytes."""
    return [f" {prompt[:8]}{'aäあ🙂'[number % 4]}{number}" for number in range(count)]


def text_of(prompt: str, count: int) -> str:
    return "".join(pieces(prompt, count))


class Attempt:
    """One run of a job. With `scored` each piece that is written is a token with its log probability."""

    def __init__(self, job: Any, *, worker: UUID | None = None, scored: bool = False) -> None:
        from inference.store import transitions

        self.job, self.batch, self.text, self.tokens = job, uuid4(), "", 0
        self.scores: list[Any] | None = [] if scored else None
        self.claimed = transitions.claim_jobs(
            [job.id],
            self.batch,
            model=job.model,
            time_limit_s=PATIENCE_S,
            takes_over=(),
            worker=worker or uuid4(),
            device="cpu",
        )

    def chunk(self, text: str) -> Any:
        from inference.streams.chunks import Chunk

        self.tokens += 1
        at, scores = len(self.text), []
        if self.scores is not None:
            token = {"id": self.tokens, "text": text, "logprob": -1.0 / self.tokens, "special": False, "start": at}
            scores = [[token, [token]]]
            self.scores += scores
        self.text += text
        return Chunk(job_id=self.job.id, attempt=self.batch, at=at, text=text, tokens=self.tokens, scores=scores)

    def write(self, *texts: str) -> None:
        from inference.streams import redis_streams

        redis_streams.write_chunks([self.chunk(text) for text in texts])

    def rewrite(self, *texts: str) -> None:
        """All of it, with these at its end."""
        from inference.streams import redis_streams

        last = [self.chunk(text) for text in texts][-1]
        redis_streams.write_chunks([replace(last, at=0, text=self.text, scores=self.scores or ())])

    def end(self, **outcome: Any) -> None:
        from inference.store import outcome_records
        from inference.store.outcome_records import Outcome

        if not outcome:
            output: list[Any] = [{"generated_text": self.job.inputs + self.text}]
            if self.scores is not None:
                pairs = [token for token, _ in self.scores], [likeliest for _, likeliest in self.scores]
                output[0]["details"] = dict(zip(("tokens", "top_tokens"), pairs, strict=True))
            outcome = {"output": output, "prompt_length": len(self.job.inputs)}
        outcome_records.record_outcomes(
            self.batch, [Outcome(job_id=self.job.id, model=self.job.model, **outcome)], batch_size=1
        )


class Generator(threading.Thread):
    """Takes all queued jobs at once. Each has its next piece every `PACE_S`."""

    def __init__(self) -> None:
        from inference.models import Worker, WorkerState

        super().__init__(name="generator", daemon=True)
        self.stopping = threading.Event()
        self.row = Worker.objects.create(
            name="generator",
            pid=os.getpid(),
            state=WorkerState.READY,
            model_names=["words"],
            replicas={"0": {"pid": 1, "device": "cpu", "models": {"words": "ready"}}},
        )
        self.open: list[tuple[Attempt, list[str]]] = []

    def run(self) -> None:
        from django.db import connection

        try:
            while not self.stopping.wait(PACE_S):
                self.work()
        finally:
            connection.close()

    def work(self) -> None:
        from django.db.models.functions import Now

        from inference.models import Job, Status, Worker
        from inference.streams import redis_streams

        Worker.objects.filter(pk=self.row.pk).update(heartbeat_at=Now())
        for job in Job.objects.filter(status=Status.QUEUED):
            attempt = Attempt(job, worker=self.row.pk)
            left = pieces(job.inputs, job.parameters.get("max_new_tokens", PIECES))
            self.open += [(attempt, left)] if attempt.claimed else []
        running = set(Job.objects.filter(status=Status.RUNNING).values_list("pk", flat=True))
        self.open = [(attempt, left) for attempt, left in self.open if attempt.job.pk in running]
        going = ((attempt, left) for attempt, left in self.open if left and not is_held(attempt))
        redis_streams.write_chunks([attempt.chunk(left.pop(0)) for attempt, left in going])
        for attempt, left in self.open:
            if not left:
                attempt.end()


def is_held(attempt: Attempt) -> bool:
    return attempt.tokens >= FEW and attempt.job.inputs.startswith(echo.HELD) and echo.is_held()


def main() -> None:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    generator = Generator()
    while True:
        generator.work()
        time.sleep(PACE_S)  # the pace of a model, which readers see


if __name__ == "__main__":
    main()
