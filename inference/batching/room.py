"""The room that is left in the KV cache that the rows of an open batch share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The room for rows that join."""

    rows: int = 0  # rows that may join
    tokens: float = 0  # tokens of cache that no row has
    longest: int = 0  # tokens that each row takes, where all take as many as the longest; 0 where each takes its own
    others: int = 0  # rows that have their tokens already

    def subtract_rows(self, size: int, length: int) -> Room:
        """Return the room that `size` more rows of `length` tokens leave; it is exceeded where they do not fit."""
        longest = max(self.longest, length) if self.longest else 0
        grown = self.others * (longest - self.longest)  # tokens that the others take more beside a longer row
        return Room(
            rows=self.rows - size,
            tokens=self.tokens - grown - size * (longest or length),
            longest=longest,
            others=self.others + size,
        )

    @property
    def is_exceeded(self) -> bool:
        return self.rows < 0 or self.tokens < 0
