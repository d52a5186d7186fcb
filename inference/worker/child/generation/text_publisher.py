"""What an open batch tells of its jobs' texts while they are generated, for those who stream them."""

import math
import time
from dataclasses import dataclass, field
from uuid import UUID

from inference.streams import history
from inference.streams.chunks import Chunk

TELL_S = 0.03  # between two rounds: text that comes faster is told together
WHOLE_S = 5.0  # between two tellings of all of a job's text: what was lost on its way is made good


@dataclass(slots=True)
class _Text:
    pieces: list[str] = field(default_factory=list)
    length: int = 0
    whole_at: float = -math.inf  # monotonic


class TextPublisher:
    """Of one batch, which is an attempt of each of its jobs."""

    def __init__(self, batch: UUID) -> None:
        self._batch = batch
        self._texts: dict[UUID, _Text] = {}
        self._chunks: list[Chunk] = []  # of the next round
        self._told_at = 0.0

    def add(self, job_id: UUID, text: str, *, tokens: int) -> None:
        """`tokens` of the job so far."""
        known, now = self._texts.setdefault(job_id, _Text()), time.monotonic()
        at = known.length
        known.pieces.append(text)
        known.length += len(text)
        if now - known.whole_at > WHOLE_S:
            at, text = 0, "".join(known.pieces)
            known.pieces, known.whole_at = [text], now
        self._chunks.append(Chunk(job_id=job_id, attempt=self._batch, at=at, text=text, tokens=tokens))

    def forget(self, job_id: UUID) -> None:
        """It has ended, or left."""
        self._texts.pop(job_id, None)

    def tell_soon(self) -> None:
        """Unless the last round was just now."""
        if time.monotonic() - self._told_at > TELL_S:
            self.tell()

    def tell(self) -> None:
        self._told_at, told, self._chunks = time.monotonic(), self._chunks, []
        history.write(told)
