"""Batches without padding: the layers of a text encoder see the tokens of all texts in one row, and attention looks at
each text by itself.

Padding costs what text costs: of lengths as they come, a batch of 8 takes three times as long padded as packed. What
comes before the layers and after them, embeddings and heads, is given padded rows as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from inference.engines import trials

logger = logging.getLogger(__name__)

ATTENTION = "packed"
LAYERS = {  # of the models whose layers know nothing of positions, by type: the module that runs them
    "bert": "encoder",
    "camembert": "encoder",
    "distilbert": "transformer",
    "electra": "encoder",
    "roberta": "encoder",
    "xlm-roberta": "encoder",
}
RUN_COST = 150_000  # of the attention to texts of one length that follow each other, beyond that of one call for all:
# what a layer does with so many padded tokens x hidden size squared in the same time


def install(model: Any, tokenizer: Any) -> bool:
    """Let `model` pack its batches, if it can: tried out on two texts. Only on a CPU: on a GPU padding costs little."""
    name = LAYERS.get(model.config.model_type)
    if name is None or model.device.type != "cpu" or model.config._attn_implementation != "sdpa":
        return False
    tokens = tokenizer(list(trials.TEXTS), padding=True, return_tensors="pt")
    before = _states(model, tokens)
    model.set_attn_implementation(ATTENTION)
    layers = getattr(model.base_model, name)
    hooks = (
        layers.register_forward_pre_hook(_pack, with_kwargs=True),
        layers.register_forward_hook(_unpack, with_kwargs=True),
    )
    if trials.same(_states(model, tokens), before):
        return True
    logger.warning("%s answers differently when its batches are packed; they are padded", model.config.model_type)
    model.set_attn_implementation("sdpa")
    for hook in hooks:
        hook.remove()
    return False


@torch.inference_mode()
def _states(model: Any, tokens: Any) -> torch.Tensor:
    """Of the texts' own tokens, one a row."""
    states: torch.Tensor = model.base_model(**tokens).last_hidden_state
    return states[tokens["attention_mask"].bool()]


def _pack(layers: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Before the layers: one row instead of many. `own` marks the texts' own tokens, of shape (texts, longest)."""
    mask = options.get("attention_mask")
    if mask is None:
        return None
    own = mask[:, 0, 0]
    lengths = own.sum(1).tolist()
    runs = sum(1 for _ in groupby(lengths))
    padding = own.numel() - sum(lengths)
    hidden = arguments[0] if arguments else options["hidden_states"]
    if padding * hidden.shape[-1] ** 2 < runs * RUN_COST:
        return None
    packed = {"attention_mask": None, "own": own, "lengths": lengths}
    row = hidden[own].unsqueeze(0)
    if arguments:
        return (row, *arguments[1:]), {**options, **packed}
    return (), {**options, **packed, "hidden_states": row}


def _unpack(layers: nn.Module, arguments: Any, options: dict[str, Any], output: Any) -> Any:
    """After the layers: padded rows again."""
    own = options.get("own")
    if own is not None:
        output.last_hidden_state = padded(output.last_hidden_state[0], own)
    return output


def padded(values: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """(tokens, size) to (texts, longest, size): `values` in order where `own` is true, else zeros."""
    rows = values.new_zeros(*own.shape, values.shape[-1])
    rows[own] = values
    return rows


def _attention(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any,
    lengths: Sequence[int] | None = None, **options: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Of tensors of shape (1, heads, tokens, size), or of padded ones when there are no `lengths`."""
    if lengths is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    parts, start = [], 0
    for length, same in groupby(lengths):
        end = start + length * len(list(same))
        own_query, own_key, own_value = (_texts(part[:, :, start:end], length) for part in (query, key, value))
        attended = functional.scaled_dot_product_attention(own_query, own_key, own_value, scale=options.get("scaling"))
        parts.append(attended.transpose(1, 2).flatten(0, 1))
        start = end
    return torch.cat(parts).unsqueeze(0), None


def _texts(part: torch.Tensor, length: int) -> torch.Tensor:
    """(1, heads, texts x length, size) to (texts, heads, length, size)."""
    return part[0].unflatten(1, (-1, length)).transpose(0, 1)


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
