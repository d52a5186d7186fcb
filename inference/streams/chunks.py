"""The chunks of text that a child process publishes while it generates a job.

A chunk is a hint: the row has the whole text once the job has ended.
"""

import struct
from dataclasses import dataclass
from typing import Self
from uuid import UUID

_HEAD = struct.Struct(">16sII")


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

    def to_bytes(self) -> bytes:
        """Return the chunk as bytes, without the id of the job.

        Half of a surrogate pair becomes a question mark. The text of the row corrects that later.
        """
        return _HEAD.pack(self.attempt.bytes, self.at, self.tokens) + self.text.encode(errors="replace")

    @classmethod
    def from_bytes(cls, job_id: UUID, data: bytes) -> Self:
        """Read a chunk from its bytes. Raises `ValueError` if they are no chunk."""
        if len(data) < _HEAD.size:
            raise ValueError(f"{len(data)} bytes are no chunk")
        attempt, at, tokens = _HEAD.unpack_from(data)
        text = data[_HEAD.size :].decode()
        return cls(job_id=job_id, attempt=UUID(bytes=attempt), at=at, text=text, tokens=tokens)
