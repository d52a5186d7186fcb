"""The prefix cache: keys and values of prompts that were read.

The beginning of a prompt that begins as one of them does is not computed again.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin

from inference.engines.runtime.exception_diagnosis import is_out_of_memory

LEAST = 128  # tokens: shorter prompts are read beside others, which saves more


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    tokens: list[int]
    layers: list[tuple[torch.Tensor, torch.Tensor]]  # keys and values, [1, heads, tokens, size] each


class PrefixCache:
    """The prompts of one model that are kept, of at most `most` tokens together.

    The prompt that was of no use for longest is dropped first. Where memory is short, all are dropped.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: list[Prefix] = []

    def find_prefix(self, tokens: list[int]) -> Cache | None:
        """Return a cache with the longest known beginning of `tokens`, or None.

        The last token is never part of it, as its scores are wanted.
        """
        shared = [_count_shared_tokens(prefix.tokens, tokens[:-1]) for prefix in self.kept]
        length = max(shared, default=0)
        if length < LEAST:
            return None
        found = self.kept.pop(shared.index(length))
        self.kept.append(found)
        with self._handle_out_of_memory():
            cache = DynamicCache()
            for number, (keys, values) in enumerate(found.layers):
                cache.update(keys[:, :, :length], values[:, :, :length], number)
            return cache
        return None

    def keep_prefix(self, tokens: list[int], layers: Sequence[CacheLayerMixin], place: int) -> None:
        """Keep the keys and values of row `place` of `layers`, whose last columns belong to `tokens`."""
        length = len(tokens)
        if not LEAST <= length <= self.most or any(
            _count_shared_tokens(prefix.tokens, tokens) == length for prefix in self.kept
        ):
            return
        self.kept = [prefix for prefix in self.kept if _count_shared_tokens(prefix.tokens, tokens) < len(prefix.tokens)]
        while sum(len(prefix.tokens) for prefix in self.kept) + length > self.most:
            del self.kept[0]
        row, columns = slice(place, place + 1), slice(-length, None)
        with self._handle_out_of_memory():
            copies = [(layer.keys[row, :, columns].clone(), layer.values[row, :, columns].clone()) for layer in layers]
            self.kept.append(Prefix(tokens, copies))

    def drop_all(self) -> None:
        self.kept = []

    @contextlib.contextmanager
    def _handle_out_of_memory(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.drop_all()


def _count_shared_tokens(one: list[int], other: list[int]) -> int:
    """Return how many tokens at the beginning of both are the same."""
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
