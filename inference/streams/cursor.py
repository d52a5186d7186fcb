"""The text that a client was sent of a job, compared with the text of the current attempt.

The text of the attempt must begin with the text that was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from inference.streams.events import Delta, Restart
from inference.streams.positions import BEGINNING, DeliveredText, Position
from inference.streams.redis_streams import FIRST, Entry


class TextDiverged(Exception):
    """The text of the attempt does not begin with the text that was sent."""


class StreamCursor:
    def __init__(self, job_id: UUID, delivered: Position) -> None:
        self.job_id = job_id
        self._delivered = delivered
        self._reset_attempt(FIRST)

    @property
    def last_event_id(self) -> str:
        """The id of the last event."""
        return self._delivered.make_event_id(self.job_id)

    @property
    def entry_before_attempt(self) -> bytes:
        """The id of the entry before the first entry of the attempt."""
        return self._before

    def take_new_text(self, entries: Sequence[Entry]) -> Delta | None:
        """Return the text of these entries that is new for the client, or None if there is none.

        Text that the client has is left out. So is text behind missing characters, and text of an attempt that another
        one follows. Raises `TextDiverged`.
        """
        text, tokens, scores = "", 0, list[Any]()
        newest = max((number for number, (_, chunk) in enumerate(entries) if not chunk.at), default=0)
        if newest:
            self._last = entries[newest - 1][0]
        for entry in entries[newest:]:
            at = self._delivered.at
            text += self._take_entry_text(entry)
            tokens = entry[1].tokens
            scores += self._select_new_scores(entry[1].scores, at)
        return Delta(text=text, id=self.last_event_id, tokens=tokens, scores=scores) if text else None

    def take_rest_of_text(self, text: str, scores: Sequence[Any]) -> Delta | None:
        """Return what the client lacks of the whole text and its scores, which were read from the row.

        Raises `TextDiverged`.
        """
        at, self._seen = self._delivered.at, DeliveredText()
        new = self._skip_sent_text(text)
        if self._seen.at < self._delivered.at:
            raise TextDiverged
        new_scores = self._select_new_scores(scores, at)
        return Delta(text=new, id=self.last_event_id, scores=new_scores) if new else None

    def restart_attempt(self) -> Restart:
        """Begin anew: no text counts as sent, and the first entry of the attempt comes next."""
        self._delivered = BEGINNING
        self._reset_attempt(self._before)
        return Restart(id=self.last_event_id)

    def _reset_attempt(self, last: bytes) -> None:
        self._attempt: UUID | None = None
        self._seen = DeliveredText()
        self._before = self._last = last

    def _take_entry_text(self, entry: Entry) -> str:
        before = self._last
        self._last, chunk = entry
        if chunk.attempt != self._attempt:
            if chunk.at:  # the chunk's attempt is over, or the beginning of its text is missing
                return ""
            self._attempt, self._seen, self._before = chunk.attempt, DeliveredText(), before
        known = self._seen.at - chunk.at
        return self._skip_sent_text(chunk.text[known:]) if known >= 0 else ""

    def _select_new_scores(self, scores: Sequence[Any], at: int) -> list[Any]:
        """Return the scores of tokens that begin in the text that was sent from `at` on."""
        return [each for each in scores if at <= each[0]["start"] < self._delivered.at]

    def _skip_sent_text(self, text: str) -> str:
        """Return the new part of `text`, which follows the text that was seen. Raises `TextDiverged`."""
        again = self._delivered.at - self._seen.at
        self._seen.add_text(text[:again])
        if self._seen.at < self._delivered.at:
            return ""
        if self._seen.position != self._delivered:
            raise TextDiverged
        self._seen.add_text(text[again:])
        self._delivered = self._seen.position
        return text[again:]
