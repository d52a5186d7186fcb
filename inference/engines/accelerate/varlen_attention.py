"""Attention within each of many texts in one call of FlashAttention, which takes the bounds of the texts."""

import torch
from torch.nn.attention.varlen import varlen_attn

from inference.engines.accelerate.ragged_attention import Attention, PackedTexts

LARGEST_HEAD = 256
OLDEST = (8, 0)  # compute capability: Ampere


class Varlen(Attention):
    """Attention by FlashAttention. Its result is not initialized for tokens behind the last text."""

    def attend_all_tokens(
        self, texts: PackedTexts, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        return self._attend(texts, texts.bounds, texts.longest, query, key, value)

    def attend_first_tokens(
        self, texts: PackedTexts, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        bounds = torch.arange(texts.count + 1, dtype=torch.int32, device=query.device)
        return self._attend(texts, bounds, 1, query, key, value)

    def _attend(self, texts: PackedTexts, bounds: torch.Tensor, longest: int, *parts: torch.Tensor) -> torch.Tensor:
        """Compute attention for queries, keys and values. `bounds` and `longest` are those of the queries."""
        query, key, value = (part.unflatten(1, (-1, self.size)) for part in parts)
        attended: torch.Tensor = varlen_attn(
            query, key, value, bounds, texts.bounds, longest, texts.longest, scale=self.scale
        )
        return attended.flatten(1)


def supports_head_size(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    """Return True if FlashAttention computes heads of `size` on that device, in that type."""
    is_short = dtype in (torch.float16, torch.bfloat16)
    fits = size % 8 == 0 and size <= LARGEST_HEAD
    return device.type == "cuda" and is_short and fits and torch.cuda.get_device_capability(device) >= OLDEST
