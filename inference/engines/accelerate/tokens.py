"""Texts to tokens by the tokenizer's core: what transformers puts around it takes nearly as long again."""

from collections.abc import Callable
from typing import Any

import torch

_PARTS = {"input_ids": "ids", "token_type_ids": "type_ids", "attention_mask": "attention_mask"}

Encode = Callable[[list[str]], dict[str, torch.Tensor]]


def encoder(tokenizer: Any) -> Encode | None:
    """What the tokenizer answers to a list of texts, padded to the longest and cut at its limit, as tensors; None for
    a tokenizer that goes its own ways."""
    from transformers import PreTrainedTokenizerBase
    from transformers.tokenization_utils_base import PaddingStrategy, TruncationStrategy
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    kind = type(tokenizer)
    if (
        not isinstance(tokenizer, TokenizersBackend)
        or kind.__call__ is not PreTrainedTokenizerBase.__call__
        or kind._encode_plus is not TokenizersBackend._encode_plus
        or not _PARTS.keys() >= set(tokenizer.model_input_names)
    ):
        return None
    core = tokenizer.backend_tokenizer
    parts = {name: _PARTS[name] for name in tokenizer.model_input_names}

    def encode(texts: list[str]) -> dict[str, torch.Tensor]:
        tokenizer.set_truncation_and_padding(
            padding_strategy=PaddingStrategy.LONGEST, truncation_strategy=TruncationStrategy.LONGEST_FIRST,
            max_length=tokenizer.model_max_length, stride=0, pad_to_multiple_of=None, padding_side=None,
        )  # fmt: skip
        core.encode_special_tokens = tokenizer.split_special_tokens  # another call may have left it otherwise
        found = core.encode_batch_fast(texts)
        return {name: torch.tensor([getattr(text, part) for text in found]) for name, part in parts.items()}

    return encode
