"""The positions in a stream, which are the ids of its events.

With a position any web process continues the stream without a missing or doubled character. It does so in the text of a
new attempt, in the chunks that Redis keeps, or in the row.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import Self
from uuid import UUID

from django.conf import settings

from inference.errors import UnknownPosition

BYTES = 8  # of each of the two digests in an id
MOST_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Position:
    at: int  # characters that were sent
    digest: bytes  # of these characters: a text that continues at `at` must begin with the same ones

    @classmethod
    def from_event_id(cls, text: str, job_id: UUID) -> Self:
        """Read a position from the id of an event.

        Raises `UnknownPosition` if `make_event_id` did not make this id for the same job.
        """
        number, _, encoded = text.partition("-")
        if number.isascii() and number.isdigit() and len(number) <= MOST_DIGITS:
            digest = _decode_base64(encoded)[:BYTES]
            if hmac.compare_digest(cls(int(number), digest).make_event_id(job_id).encode(), text.encode()):
                return cls(int(number), digest)
        raise UnknownPosition(
            f"Last-Event-ID: no event of the job {job_id} has this id. Leave it out to begin at the first character."
        )

    def make_event_id(self, job_id: UUID) -> str:
        signed = hashlib.blake2b(
            b"%d-%b" % (self.at, self.digest),
            key=_derive_key(settings.SECRET_KEY),
            salt=job_id.bytes,
            digest_size=BYTES,
        ).digest()
        return f"{self.at}-{base64.urlsafe_b64encode(self.digest + signed).decode().rstrip('=')}"


class DeliveredText:
    """The position of a stream, which moves on with each text that is sent."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=BYTES)
        self.at = 0

    def add_text(self, text: str) -> None:
        self._hash.update(text.encode(errors="surrogatepass"))
        self.at += len(text)

    @property
    def position(self) -> Position:
        return Position(self.at, self._hash.digest())


BEGINNING = DeliveredText().position


def _derive_key(secret: str) -> bytes:
    return hashlib.blake2b(secret.encode(), person=b"stream-position", digest_size=32).digest()


def _decode_base64(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return b""
