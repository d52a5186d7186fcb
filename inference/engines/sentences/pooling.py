"""Pooling: one vector made of a text's token states, as the folder of a sentence-transformers model asks.

`1_Pooling/config.json` names the kind of pooling (Reimers and Gurevych, 2019; weighted mean and last token:
Muennighoff, 2022).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from inference.errors import ModelUnavailable

LEAST = 1e-9  # tokens by which a mean is divided at least, as in sentence-transformers' Pooling
HIDDEN = -1e9  # state of tokens that do not count, where "max" finds no other, as in sentence-transformers' Pooling

Pool = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (texts, tokens, hidden), (texts, tokens, 1) -> (texts, …)


def _pool_mean(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (states * mask).sum(1) / mask.sum(1).clamp(min=LEAST)


def _number_tokens(mask: torch.Tensor) -> torch.Tensor:
    """Return each token's place, counted from 1 with the prompt's tokens. It is 0 where the mask is 0."""
    return mask * torch.arange(1, mask.shape[1] + 1, dtype=mask.dtype, device=mask.device).unsqueeze(1)


def _pool_last_token(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return states[torch.arange(len(states), device=states.device), _number_tokens(mask).argmax(1).squeeze(1)]


# Kinds by name. If flags ask for several, their vectors follow each other in this order. A list has its own order.
POOLS: dict[str, Pool] = {
    "cls": lambda states, mask: states[:, 0],
    "max": lambda states, mask: states.masked_fill(mask == 0, HIDDEN).amax(1),
    "mean": _pool_mean,
    "mean_sqrt_len_tokens": lambda states, mask: (states * mask).sum(1) / mask.sum(1).clamp(min=LEAST).sqrt(),
    "weightedmean": lambda states, mask: _pool_mean(states, _number_tokens(mask)),
    "lasttoken": _pool_last_token,
}
_FLAGS = (
    {f"pooling_mode_{name}": name for name in POOLS}
    | {f"pooling_mode_{name}_tokens": name for name in ("max", "mean", "weightedmean")}
    | {"pooling_mode_cls_token": "cls"}
)
MEAN = ("mean",)
MEAN_FLAG = "pooling_mode_mean_tokens"
# Fields of Pooling's configuration beside the flags. The sizes repeat what the model has.
FIELDS = {"pooling_mode", "include_prompt", "word_embedding_dimension", "embedding_dimension"}


def pool_states(modes: Sequence[str], states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return one vector for each text, from states that are padded on the right.

    `mask` has the shape (texts, tokens). It is 0 for what does not count: padding, and a prompt that is not to be
    included.
    """
    own = mask.unsqueeze(2).to(states.dtype)
    return torch.cat([POOLS[mode](states, own) for mode in modes], 1)


def read_modes(file: str, saved: dict[str, Any]) -> tuple[tuple[str, ...], bool]:
    """Read the configuration of a Pooling module, which is `saved` in `file`.

    Returns its kinds of pooling, and True if they include the prompt's tokens. Raises `ModelUnavailable` if something
    in it is not understood.
    """
    named = saved.get("pooling_mode")
    flags = {name: on for name, on in saved.items() if name.startswith("pooling_mode_")}
    if saved and not named:
        flags = {MEAN_FLAG: True, **flags}  # the default of Pooling's argument
    names = [str(name).lower() for name in (named if isinstance(named, list) else [named] if named else [])]
    flagged = [_FLAGS.get(name, name) for name, on in flags.items() if on is True]
    unknown = [name for name in names + flagged if name not in POOLS]
    modes = names or [name for name in POOLS if name in flagged]
    if unknown or not modes:
        raise ModelUnavailable(
            f"{file}: the pooling {', '.join(unknown) or 'of its Pooling module'} is not known; known are"
            f" {', '.join(POOLS)}."
        )
    if others := saved.keys() - flags.keys() - FIELDS:
        raise ModelUnavailable(
            f"{file}: {min(others)} is not understood. Write an engine class, see docs/guide/models.md."
        )
    include_prompt = saved.get("include_prompt", True)
    if not isinstance(include_prompt, bool):
        raise ModelUnavailable(f"{file}: include_prompt must be true or false.")
    return tuple(modes), include_prompt
