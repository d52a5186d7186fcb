"""A classifier reads the first token of each text: its last layer need not compute the others.

Keys and values of all tokens are needed; the rest of the layer, five sixths of its work, for one token a text. That
saves a seventh of a model of six layers.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from inference.engines import packing, trials

logger = logging.getLogger(__name__)


class Last(NamedTuple):
    """The parts of a last layer."""

    layer: Any
    attention: Any
    query: nn.Module
    key: nn.Module
    value: nn.Module
    finish: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of what was attended to, and what came in


def _like_bert(model: Any) -> Last:
    layer = model.base_model.encoder.layer[-1]
    attention = layer.attention.self

    def finish(attended: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        mixed = layer.attention.output(attended, first)
        finished: torch.Tensor = layer.output(layer.intermediate(mixed), mixed)
        return finished

    return Last(layer, attention, attention.query, attention.key, attention.value, finish)


def _like_distilbert(model: Any) -> Last:
    layer = model.base_model.transformer.layer[-1]
    attention = layer.attention

    def finish(attended: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        mixed = layer.sa_layer_norm(attention.out_lin(attended) + first)
        finished: torch.Tensor = layer.output_layer_norm(layer.ffn(mixed) + mixed)
        return finished

    return Last(layer, attention, attention.q_lin, attention.k_lin, attention.v_lin, finish)


KINDS: dict[str, Callable[[Any], Last]] = {
    "bert": _like_bert,
    "camembert": _like_bert,
    "distilbert": _like_distilbert,
    "electra": _like_bert,
    "roberta": _like_bert,
    "xlm-roberta": _like_bert,
}


def install(model: Any, tokenizer: Any) -> bool:
    """Let the last layer of a classifier compute first tokens only, if the answers to two texts stay the same."""
    if model.config.model_type not in KINDS or model.device.type != "cpu":
        return False
    tokens = tokenizer(list(trials.TEXTS), padding=True, return_tensors="pt")
    complete = _scores(model, tokens)
    last = KINDS[model.config.model_type](model)
    last.layer.forward = functools.partial(_first_tokens, last)
    if trials.same(_scores(model, tokens), complete):
        return True
    logger.warning("%s reads more than first tokens; all are computed", model.config.model_type)
    del last.layer.forward
    return False


@torch.inference_mode()
def _scores(model: Any, tokens: Any) -> torch.Tensor:
    scores: torch.Tensor = model(**tokens).logits
    return scores


def _first_tokens(
    last: Last, hidden: torch.Tensor, attention_mask: torch.Tensor | None = None, *rest: Any,
    own: torch.Tensor | None = None, **options: Any,
) -> torch.Tensor:  # fmt: skip
    """The layer's answer, and zeros for all tokens but the first ones. `own` marks the tokens of packed texts."""
    key, value = last.key(hidden), last.value(hidden)
    if own is None:
        places: Any = (slice(None), 0)
        mask = None if attention_mask is None else attention_mask[:, :, :1]
    else:
        lengths = own.sum(1)
        places = (0, lengths.cumsum(0) - lengths)
        key, value, mask = packing.padded(key[0], own), packing.padded(value[0], own), own[:, None, None]
    first = hidden[places].unsqueeze(1)
    query, key, value = (_by_head(part, last.attention) for part in (last.query(first), key, value))
    attended = functional.scaled_dot_product_attention(query, key, value, mask, scale=last.attention.scaling)
    states = torch.zeros_like(hidden)
    states[places] = last.finish(attended.transpose(1, 2).flatten(2), first).squeeze(1)
    return states


def _by_head(part: torch.Tensor, attention: Any) -> torch.Tensor:
    """(texts, tokens, hidden) to (texts, heads, tokens, size)."""
    return part.unflatten(-1, (-1, attention.attention_head_size)).transpose(1, 2)
