"""The texts of an open batch's jobs, published while they are generated for the clients that stream them."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from inference.streams import redis_streams
from inference.streams.chunks import Chunk

PUBLISH_S = 0.03  # seconds between two rounds: text that comes faster is published together
WHOLE_S = 5.0  # seconds between two times that all of a job's text is published, to make good what was lost


@dataclass(slots=True)
class _Text:
    pieces: list[str] = field(default_factory=list)
    length: int = 0
    scores: list[Any] = field(default_factory=list)
    whole_at: float = -math.inf  # monotonic: when all of the text was published last


class TextPublisher:
    """A publisher of the texts of one batch, which is an attempt of each of its jobs."""

    def __init__(self, batch: UUID) -> None:
        self._batch = batch
        self._texts: dict[UUID, _Text] = {}
        self._chunks: list[Chunk] = []  # the chunks that the next round publishes
        self._published_at = 0.0

    def add_text(self, job_id: UUID, text: str, *, tokens: int, scores: Sequence[Any] = ()) -> None:
        """Add new text of a job, which has `tokens` tokens so far, with the scores of those that begin in the text."""
        known, now = self._texts.setdefault(job_id, _Text()), time.monotonic()
        at = known.length
        known.pieces.append(text)
        known.length += len(text)
        known.scores += scores
        if now - known.whole_at > WHOLE_S:
            at, text, scores = 0, "".join(known.pieces), tuple(known.scores)
            known.pieces, known.whole_at = [text], now
        self._chunks.append(Chunk(job_id=job_id, attempt=self._batch, at=at, text=text, tokens=tokens, scores=scores))

    def forget_job(self, job_id: UUID) -> None:
        """Forget a job that has ended or left."""
        self._texts.pop(job_id, None)

    def publish_if_due(self) -> None:
        """Publish what was added, unless the last round was within `PUBLISH_S`."""
        if time.monotonic() - self._published_at > PUBLISH_S:
            self.publish_texts()

    def publish_texts(self) -> None:
        self._published_at, chunks, self._chunks = time.monotonic(), self._chunks, []
        redis_streams.write_chunks(chunks)
