"""How far a stream was told, as the id of its events: with it any web process goes on without a missing or doubled
character, in the text of a new attempt, in what Redis keeps of it, or in the row."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import Self
from uuid import UUID

from django.conf import settings

from inference.errors import UnknownPosition

BYTES = 8  # of either digest
MOST_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Position:
    at: int  # characters that were told
    digest: bytes  # of them: whoever goes on at `at` must have told the same

    @classmethod
    def of_id(cls, text: str, job_id: UUID) -> Self:
        """Raises `UnknownPosition` for what was not made by `id_for` of the same job."""
        number, _, encoded = text.partition("-")
        if number.isascii() and number.isdigit() and len(number) <= MOST_DIGITS:
            digest = _decoded(encoded)[:BYTES]
            if hmac.compare_digest(cls(int(number), digest).id_for(job_id).encode(), text.encode()):
                return cls(int(number), digest)
        raise UnknownPosition(
            f"Last-Event-ID: no event of the job {job_id} has this id. Leave it out to begin at the first character."
        )

    def id_for(self, job_id: UUID) -> str:
        signed = hashlib.blake2b(
            b"%d-%b" % (self.at, self.digest), key=_key(settings.SECRET_KEY), salt=job_id.bytes, digest_size=BYTES
        ).digest()
        return f"{self.at}-{base64.urlsafe_b64encode(self.digest + signed).decode().rstrip('=')}"


class Told:
    """What a stream has told: its position as it moves on."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=BYTES)
        self.at = 0

    def tell(self, text: str) -> None:
        self._hash.update(text.encode(errors="surrogatepass"))
        self.at += len(text)

    @property
    def position(self) -> Position:
        return Position(self.at, self._hash.digest())


BEGINNING = Told().position


def _key(secret: str) -> bytes:
    return hashlib.blake2b(secret.encode(), person=b"stream-position", digest_size=32).digest()


def _decoded(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return b""
