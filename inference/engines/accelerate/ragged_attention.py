"""Texts of many lengths as one row of tokens, and attention within each text."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch.nn import functional

from inference.engines.accelerate.prepacked_weights import round_rows

CALL_COST = 300_000  # multiplications with padding that cost as much as one more call of attention
CALL_COST_ON_GPU = 100_000_000  # the same, derived: ten launches of 5 µs, at 2 million million of them a second
NARROWEST = 16  # tokens, below which attention takes twice as long: they fill no register of AVX-512


class Group(NamedTuple):
    """Texts of near lengths that follow each other, for one call of attention."""

    start: int  # the first of their tokens in the row
    end: int  # the token behind the last one
    first: int  # the first of the texts, in the row's order
    last: int  # the text behind the last one
    longest: int  # tokens that each text is padded to
    own: torch.Tensor | None  # (texts, longest), false for padding; None where there is no padding
    places: torch.Tensor | None  # places of their tokens among the padded ones
    padded: torch.Tensor | None  # the places in the row of the padded tokens; for padding a text's first token


class PackedTexts:
    """The tokens of a batch without its padding, with the texts ordered by length.

    `shape` is (texts, longest, hidden) as it comes. `own` of shape (texts, longest) is false for padding, or None if
    there is none. Further tokens follow the last text, up to a number of rows that packed weights are multiplied with;
    their values are not used.

    On another `device` than the CPU, `own` is copied from it once, and the places found are copied to it. There are no
    groups if attention has no use for them.
    """

    def __init__(
        self,
        shape: Sequence[int],
        own: torch.Tensor | None,
        device: torch.device | None = None,
        *,
        has_groups: bool = True,
    ) -> None:
        self.count, self.longest, self.hidden = shape
        if device is not None and own is not None:
            own = own.cpu()
        if own is None:
            self.order, self.index = None, None
            lengths = [self.longest] * self.count
        else:
            counts = own.sum(1).tolist()
            order = sorted(range(self.count), key=counts.__getitem__)
            lengths = [counts[text] for text in order]
            tokens = own.flatten().nonzero().squeeze(1).split(counts)
            self.order = torch.tensor(order)
            more = round_rows(sum(lengths)) - sum(lengths)
            self.index = torch.cat([tokens[text] for text in order] + [tokens[order[-1]][:1].expand(more)])
        self.tokens = sum(lengths)
        self.starts = [0, *accumulate(lengths)]
        self.firsts = torch.tensor(self.starts[:-1])
        self.groups: list[Group] = []
        if has_groups:
            cost = CALL_COST if device is None else CALL_COST_ON_GPU
            self.groups = [
                self._make_group(lengths, first, last) for first, last in group_near_lengths(lengths, self.hidden, cost)
            ]
        if device is not None:
            self._move_to_device(device)

    def _make_group(self, lengths: list[int], first: int, last: int) -> Group:
        longest = max(NARROWEST, lengths[last - 1])
        start, end = self.starts[first], self.starts[last]
        if lengths[first] == longest:
            return Group(start, end, first, last, longest, None, None, None)
        places = torch.arange(longest)
        own = places < torch.tensor(lengths[first:last]).unsqueeze(1)
        padded = self.firsts[first:last].unsqueeze(1) + places * own
        return Group(start, end, first, last, longest, own, own.flatten().nonzero().squeeze(1), padded.flatten())

    def _move_to_device(self, device: torch.device) -> None:
        self.firsts = self.firsts.to(device)
        if self.order is not None and self.index is not None:
            self.order, self.index = self.order.to(device), self.index.to(device)
        self.groups = [
            group._replace(**{name: part.to(device) for name, part in group._asdict().items() if torch.is_tensor(part)})
            for group in self.groups
        ]

    @cached_property
    def bounds(self) -> torch.Tensor:
        """The places where each text begins and the last one ends: (texts + 1)."""
        return torch.tensor(self.starts, dtype=torch.int32, device=self.firsts.device)

    def remove_padding(self, padded: torch.Tensor) -> torch.Tensor:
        """Return padded values as rows: (texts, longest, hidden) to (tokens, hidden)."""
        flat = padded.flatten(0, 1)
        return flat if self.index is None else flat[self.index]

    def add_padding(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows as padded values, with zeros for padding: (tokens, hidden) to (texts, longest, hidden)."""
        if self.index is not None:
            own, whole = self.index[: self.tokens], rows.new_zeros(self.count * self.longest, rows.shape[-1])
            rows = whole.index_copy_(0, own, rows[: self.tokens])
        return rows.unflatten(0, (self.count, self.longest))

    def restore_order(self, values: torch.Tensor) -> torch.Tensor:
        """Return values with one row a text in the order in which the texts came."""
        return values if self.order is None else torch.empty_like(values).index_copy_(0, self.order, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention within each text, with heads of `size`."""

    size: int
    scale: float

    def attend_all_tokens(
        self, texts: PackedTexts, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Compute attention for all tokens: (tokens, hidden) in and out."""
        parts = [self._attend_within_texts(group, query, key, value) for group in texts.groups]
        return _join_parts([*parts, query[texts.tokens :]] if len(query) > texts.tokens else parts)

    def attend_first_tokens(
        self, texts: PackedTexts, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Compute attention for the first token of each text.

        `query` and the result are of shape (texts, hidden), `key` and `value` of shape (tokens, hidden).
        """
        parts = []
        for group in texts.groups:
            first = query[group.first : group.last].unflatten(1, (-1, 1, self.size))
            parts.append(
                self._compute_attention(
                    group, first, self._pad_group(group, key), self._pad_group(group, value)
                ).flatten(1)
            )
        return _join_parts(parts)

    def _attend_within_texts(self, group: Group, *parts: torch.Tensor) -> torch.Tensor:
        attended = self._compute_attention(group, *(self._pad_group(group, part) for part in parts))
        rows = attended.transpose(1, 2).flatten(0, 1).flatten(1)
        return rows if group.places is None else rows.index_select(0, group.places)

    def _compute_attention(
        self, group: Group, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Compute attention for tensors of shape (texts, heads, tokens, size).

        It is computed in float32: in bfloat16 torch takes twice as long.
        """
        mask = None if group.own is None else group.own[:, None, None]
        parts = (query.float(), key.float(), value.float())
        return functional.scaled_dot_product_attention(*parts, mask, scale=self.scale).to(query.dtype)

    def _pad_group(self, group: Group, rows: torch.Tensor) -> torch.Tensor:
        """Return the tokens of a group, padded: (tokens, hidden) to (texts, heads, longest, size)."""
        part = rows[group.start : group.end] if group.padded is None else rows.index_select(0, group.padded)
        return part.view(group.last - group.first, group.longest, -1, self.size).transpose(1, 2)


def group_near_lengths(lengths: Sequence[int], hidden: int, cost: int) -> list[tuple[int, int]]:
    """Return groups of texts whose attention costs less together, padded, than in two calls.

    A group is the place of its first text, and the place behind its last. One more call costs as much as `cost`
    multiplications. `lengths` ascend.
    """
    groups: list[tuple[int, int]] = []
    end = len(lengths)
    while end:
        start = end - 1
        padding = 0
        while start:
            padding += 2 * hidden * (lengths[end - 1] ** 2 - lengths[start - 1] ** 2)
            if padding > cost:
                break
            start -= 1
        groups.append((start, end))
        end = start
    return groups[::-1]


def _join_parts(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
