"""The speed at which a worker generates, and its free KV cache, for its row."""

import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import fmean

from inference.fields.worker_documents import FirstTokenTimes, GenerationSnapshot
from inference.worker.calls import BatchReport
from inference.worker.scheduling.held_jobs import Batch

WINDOW_S = 10.0  # over which tokens a second are counted
FIRSTS = 200  # the last jobs whose time from creation to the first token is shown
ANSWERS = 200  # the last jobs by whose tokens progress is converted to jobs


@dataclass(slots=True)
class _Model:
    tokens: int = 0
    capacity: int = 0  # tokens of KV cache of a replica
    samples: deque[tuple[float, int]] = field(default_factory=deque)  # (monotonic, tokens)
    firsts: deque[float] = field(default_factory=lambda: deque(maxlen=FIRSTS))  # seconds to first tokens
    answers: deque[int] = field(default_factory=lambda: deque(maxlen=ANSWERS))  # tokens of each answer

    def add_report(self, report: BatchReport) -> None:
        """Count what a call has generated. Runs only in the event loop, while other threads read."""
        self.tokens += report.tokens
        self.capacity = report.capacity
        self.firsts += report.firsts_s
        self.answers += report.answers
        self.add_tokens(report.tokens)

    def add_tokens(self, tokens: int) -> None:
        now = time.monotonic()
        self.samples.append((now, tokens))
        while self.samples[0][0] < now - WINDOW_S:
            self.samples.popleft()

    def tokens_per_s(self, now: float) -> float:
        return sum(tokens for at, tokens in list(self.samples) if at >= now - WINDOW_S) / WINDOW_S

    def find_first_token_s(self, share: float) -> float | None:
        ranked = sorted(self.firsts)
        return round(ranked[int(share * (len(ranked) - 1))], 3) if ranked else None


class GenerationStats:
    """The generation statistics of a worker's models.

    They are written in the worker's event loop; the heartbeat's thread reads what `make_row_value` returns.
    """

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}

    def add_report(self, batch: Batch, report: BatchReport) -> None:
        if report.capacity:
            self._models.setdefault(batch.spec.name, _Model()).add_report(report)

    def convert_tokens_to_answers(self, model: str, tokens: int) -> float:
        """Return how many answers of a model `tokens` tokens make; 0.0 while no answer has ended.

        A count of the answers that end would leave out the progress of the others, and long answers take many slices of
        steps.
        """
        found = self._models.get(model)
        return tokens / fmean(found.answers) if found and found.answers else 0.0

    def make_row_value(self, batches: Collection[Batch], *, replicas: int) -> dict[str, GenerationSnapshot]:
        """Return the statistics by model, as the worker's row has them."""
        now = time.monotonic()
        return {
            name: GenerationSnapshot(
                rows=sum(held.item.size for batch in batches if batch.spec.name == name for held in batch.jobs),
                room=replicas * model.capacity
                - sum(
                    model.capacity - int(batch.room.tokens)
                    for batch in batches
                    if batch.spec.name == name and batch.is_open
                ),
                tokens=model.tokens,
                tokens_per_s=round(model.tokens_per_s(now), 1),
                first_token_s=FirstTokenTimes(p50=model.find_first_token_s(0.5), p95=model.find_first_token_s(0.95)),
            )
            for name, model in list(self._models.items())
        }
