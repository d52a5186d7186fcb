"""The KV cache of all rows, written in place, so that a step copies nothing that earlier steps have computed.

Rows end in the same column: a shorter row has empty columns before it. A window of columns is in use. It moves on by
one column a step, and its beginning moves up when the longest row leaves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

SLACK = 64  # columns allocated beyond those in use, at least; a quarter of those in use if that is more


@dataclass(slots=True)
class Window:
    """The part of all layers that a forward sees.

    It has the rows from `first` up to `last`, and the columns from `start` up to `end`.
    """

    first: int = 0
    last: int = 0
    start: int = 0
    end: int = 0


class CacheLayer(CacheLayerMixin):
    """The cells of one layer: its keys and its values, each of shape [rows, heads, columns, size]."""

    def __init__(self, window: Window) -> None:
        super().__init__()
        self.window = window

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: `KVCache.ensure_capacity` makes the keys and values."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Write the keys and values of one token of each row into the column behind the window.

        Returns the keys and values of the window and of this column.
        """
        seen = self.window
        rows, columns = slice(seen.first, seen.last), slice(seen.start, seen.end + 1)
        self.keys[rows, :, seen.end] = key_states[:, :, 0]
        self.values[rows, :, seen.end] = value_states[:, :, 0]
        return self.keys[rows, :, columns], self.values[rows, :, columns]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return self.window.end - self.window.start

    def get_max_length(self) -> int:
        return -1


class KVCache(Cache):
    """The cells of all layers of a model, which together are its KV cache."""

    layers: list[Any]

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.window = Window()
        self.rows = 0  # number of rows in use

    @property
    def columns(self) -> int:
        """Number of columns in use."""
        return self.window.end - self.window.start

    def ensure_capacity(self, rows: int, columns: int, like: Sequence[CacheLayerMixin] = ()) -> None:
        """Make room for `rows` rows and `columns` columns, and for one column more.

        If memory is short, torch's error is raised and the cells are as before. `like` has layers with the shapes of a
        row; it is needed while there are no cells yet.
        """
        made = not self.layers or rows > len(self.layers[0].keys)
        if not made and self.window.end - columns >= 0 and self.window.end < self.layers[0].keys.shape[2]:
            return
        slots = 1 << max(0, rows - 1).bit_length()
        width = columns + max(SLACK, columns // 4)
        self.reallocate_cells(slots, width, columns, like)

    def reallocate_cells(self, slots: int, width: int, end: int, like: Sequence[CacheLayerMixin]) -> None:
        used = self.columns
        old = slice(self.window.start, self.window.end)
        moved = []
        for layer in self.layers or like:
            pair = []
            for cells in (layer.keys, layer.values):
                room = cells.new_zeros(slots, cells.shape[1], width, cells.shape[3])
                if self.layers:
                    room[: self.rows, :, end - used : end] = cells[: self.rows, :, old]
                pair.append(room)
            moved.append(pair)
        self.layers = self.layers or [CacheLayer(self.window) for _ in like]
        for layer, (keys, values) in zip(self.layers, moved, strict=True):
            layer.keys, layer.values = keys, values
        self.window.start, self.window.end = end - used, end

    def add_row(self, layers: Sequence[CacheLayerMixin], place: int, length: int) -> None:
        """Add a row behind the others: the last `length` columns of row `place` of `layers`.

        The caller has made room for it with `ensure_capacity`.
        """
        end = self.window.end
        self.window.start = min(self.window.start, end - length)
        for own, other in zip(self.layers, layers, strict=True):
            for cells, found in ((own.keys, other.keys), (own.values, other.values)):
                cells[self.rows] = 0  # an empty cell changes no answer, unless it holds NaN
                cells[self.rows, :, end - length : end] = found[place, :, found.shape[2] - length :]
        self.rows += 1

    def remove_row(self, row: int) -> None:
        """Remove a row: the last row takes its place."""
        self.rows -= 1
        if row != self.rows:
            for layer in self.layers:
                layer.keys[row] = layer.keys[self.rows]
                layer.values[row] = layer.values[self.rows]
        if not self.rows:
            self.layers = []
            self.window.start = self.window.end = 0

    def add_column(self) -> None:
        """Extend the window by the column behind it, which is written now."""
        self.window.end += 1

    def keep_last_columns(self, columns: int) -> None:
        """Drop the columns before the last `columns`, which belong to no row any more."""
        self.window.start = self.window.end - columns

    def set_row_range(self, first: int, last: int) -> "KVCache":
        """Return the cache for a forward of the rows from `first` up to `last`: these cells with another window."""
        self.window.first, self.window.last = first, last
        return self
