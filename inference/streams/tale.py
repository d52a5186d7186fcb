"""What a client was told of a job, and what of the current attempt's text was seen: the latter must begin with the
former."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from inference.streams.events import Delta, Restart
from inference.streams.history import FIRST, Entry
from inference.streams.positions import BEGINNING, Position, Told


class Differs(Exception):
    """The text begins otherwise than what was told."""


class Tale:
    def __init__(self, job_id: UUID, told: Position) -> None:
        self.job_id = job_id
        self._told = told
        self._forget(FIRST)

    @property
    def id(self) -> str:
        """Of the last event."""
        return self._told.id_for(self.job_id)

    @property
    def begins_after(self) -> bytes:
        """The entry before the attempt's first one."""
        return self._before

    def hear(self, entries: Sequence[Entry]) -> Delta | None:
        """What is new in them; what is known is not told again, nor what follows missing characters, nor of an attempt
        what another one follows. Raises `Differs`."""
        text, tokens = "", 0
        newest = max((number for number, (_, chunk) in enumerate(entries) if not chunk.at), default=0)
        if newest:
            self._last = entries[newest - 1][0]
        for entry in entries[newest:]:
            text += self._new(entry)
            tokens = entry[1].tokens
        return Delta(text=text, id=self.id, tokens=tokens) if text else None

    def hear_all(self, text: str) -> Delta | None:
        """As `hear`, of the whole text, which the row told."""
        self._seen = Told()
        new = self._go_on(text)
        if self._seen.at < self._told.at:
            raise Differs
        return Delta(text=new, id=self.id) if new else None

    def restart(self) -> Restart:
        """Nothing was told, and the attempt's first entry comes next."""
        self._told = BEGINNING
        self._forget(self._before)
        return Restart(id=self.id)

    def _forget(self, last: bytes) -> None:
        self._attempt: UUID | None = None
        self._seen = Told()
        self._before = self._last = last

    def _new(self, entry: Entry) -> str:
        before = self._last
        self._last, chunk = entry
        if chunk.attempt != self._attempt:
            if chunk.at:  # of an attempt that is over, or whose beginning is missing
                return ""
            self._attempt, self._seen, self._before = chunk.attempt, Told(), before
        known = self._seen.at - chunk.at
        return self._go_on(chunk.text[known:]) if known >= 0 else ""

    def _go_on(self, text: str) -> str:
        """What is new of `text`, which follows what was seen."""
        again = self._told.at - self._seen.at
        self._seen.tell(text[:again])
        if self._seen.at < self._told.at:
            return ""
        if self._seen.position != self._told:
            raise Differs
        self._seen.tell(text[again:])
        self._told = self._seen.position
        return text[again:]
