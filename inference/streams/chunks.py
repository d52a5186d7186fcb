"""The chunks of text that a child process publishes while it generates a job.

A chunk is a hint: the row has the whole text once the job has ended.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

import orjson

_HEAD = struct.Struct(">16sII")
_MARK = b"\xff"  # between the text and the scores: no text has this byte


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Text that follows the earlier chunks of the same attempt.

    Now and then a chunk at 0 has all text of the attempt once more.
    """

    job_id: UUID
    attempt: UUID  # the batch that claimed the job: the text of another attempt begins again at 0
    at: int  # characters that the attempt generated before this chunk
    text: str
    tokens: int  # tokens that the attempt has generated so far
    scores: Sequence[Any] = ()  # as of a stepper's progress, of the tokens that begin in the text

    def to_bytes(self) -> bytes:
        """Return the chunk as bytes, without the id of the job.

        Half of a surrogate pair becomes a question mark, and scores that are no JSON are left out. The row corrects
        that later.
        """
        text = _HEAD.pack(self.attempt.bytes, self.at, self.tokens) + self.text.encode(errors="replace")
        try:
            return text + _MARK + orjson.dumps(self.scores) if self.scores else text
        except TypeError:  # an engine of one's own may give anything
            return text

    @classmethod
    def from_bytes(cls, job_id: UUID, data: bytes) -> Self:
        """Read a chunk from its bytes. Raises `ValueError` if they are no chunk."""
        if len(data) < _HEAD.size:
            raise ValueError(f"{len(data)} bytes are no chunk")
        attempt, at, tokens = _HEAD.unpack_from(data)
        text, mark, scores = data[_HEAD.size :].partition(_MARK)
        return cls(
            job_id=job_id,
            attempt=UUID(bytes=attempt),
            at=at,
            text=text.decode(),
            tokens=tokens,
            scores=orjson.loads(scores) if mark else (),
        )
