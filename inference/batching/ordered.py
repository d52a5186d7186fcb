"""A sorted list that stays fast when it is long: inserting and removing costs the same at a hundred and at 100,000."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Any

CHUNK = 512  # keys; a full chunk is split in two

Key = tuple[Any, ...]  # distinct, comparable


class Ordered:
    """Distinct tuples in ascending order, in chunks that are each small enough to shift."""

    def __init__(self) -> None:
        self._chunks: list[list[Key]] = []
        self._lows: list[Key] = []  # the first key of each chunk
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Key]:
        for chunk in self._chunks:
            yield from chunk

    def add(self, key: Key) -> None:
        self._length += 1
        if not self._chunks:
            self._chunks.append([key])
            self._lows.append(key)
            return
        index = max(0, bisect_right(self._lows, key) - 1)
        chunk = self._chunks[index]
        insort(chunk, key)
        self._lows[index] = chunk[0]
        if len(chunk) > CHUNK:
            self._split(index)

    def remove(self, key: Key) -> None:
        """Raises KeyError when it is not here."""
        index = bisect_right(self._lows, key) - 1
        chunk = self._chunks[index] if index >= 0 else []
        place = bisect_left(chunk, key)
        if place == len(chunk) or chunk[place] != key:
            raise KeyError(key)
        del chunk[place]
        self._length -= 1
        if chunk:
            self._lows[index] = chunk[0]
        else:
            del self._chunks[index], self._lows[index]

    @property
    def first(self) -> Key:
        return self._lows[0]

    def between(self, low: Key, high: Key | None = None) -> Iterator[Key]:
        """The keys from `low` on and below `high`, ascending. The list must not change meanwhile."""
        start = max(0, bisect_right(self._lows, low) - 1)
        for index in range(start, len(self._chunks)):
            chunk = self._chunks[index]
            for position in range(bisect_left(chunk, low) if index == start else 0, len(chunk)):
                if high is not None and chunk[position] >= high:
                    return
                yield chunk[position]

    def before(self, bound: Key) -> Key | None:
        """The greatest key below `bound`."""
        index = bisect_left(self._lows, bound) - 1
        if index < 0:
            return None
        chunk = self._chunks[index]
        return chunk[bisect_left(chunk, bound) - 1]

    def _split(self, index: int) -> None:
        chunk = self._chunks[index]
        middle = len(chunk) // 2
        self._chunks[index : index + 1] = [chunk[:middle], chunk[middle:]]
        self._lows[index : index + 1] = [chunk[0], chunk[middle]]
