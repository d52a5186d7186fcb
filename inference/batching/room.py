"""What is left of the cache that rows share which are generated step by step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """For those that join."""

    rows: int = 0  # that may join
    tokens: float = 0  # that no row has
    longest: int = 0  # tokens that each row takes, where all take as many as the longest; 0 where each takes its own
    others: int = 0  # rows that have theirs

    def without(self, size: int, length: int) -> Room:
        """What `size` rows of `length` tokens leave of it: less than nothing where they do not fit."""
        longest = max(self.longest, length) if self.longest else 0
        grown = self.others * (longest - self.longest)  # beside one that is longer
        return Room(
            rows=self.rows - size, tokens=self.tokens - grown - size * (longest or length), longest=longest,
            others=self.others + size,
        )  # fmt: skip

    @property
    def is_overdrawn(self) -> bool:
        return self.rows < 0 or self.tokens < 0
