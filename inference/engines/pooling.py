"""One vector of a text's token states, in the way that the folder of a sentence-transformers model says.

`modules.json` names the steps, `1_Pooling/config.json` the kind of pooling (Reimers and Gurevych, 2019; weighted mean
and last token: Muennighoff, 2022).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from inference.engines import weights
from inference.errors import ModelUnavailable

Pool = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (texts, tokens, hidden), (texts, tokens, 1) to (texts, …)


def _mean(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (states * mask).sum(1) / mask.sum(1)


def _last(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return states[torch.arange(len(states), device=states.device), mask.sum(1).long().squeeze(1) - 1]


# By name; where a model asks for several, their vectors follow each other in this order.
POOLS: dict[str, Pool] = {
    "cls": lambda states, mask: states[:, 0],
    "max": lambda states, mask: states.masked_fill(mask == 0, -torch.inf).amax(1),
    "mean": _mean,
    "mean_sqrt_len_tokens": lambda states, mask: (states * mask).sum(1) / mask.sum(1).sqrt(),
    "weightedmean": lambda states, mask: _mean(states, mask * mask.cumsum(1)),
    "lasttoken": _last,
}
_FLAGS = {f"pooling_mode_{name}": name for name in POOLS} | {
    f"pooling_mode_{name}_tokens": name for name in ("max", "mean", "weightedmean")
} | {"pooling_mode_cls_token": "cls"}  # fmt: skip
MEAN = ("mean",)


def pool(modes: Sequence[str], states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A vector a text, of states padded on the right; `mask` of shape (texts, tokens) is 0 for padding."""
    own = mask.unsqueeze(2).to(states.dtype)
    return torch.cat([POOLS[mode](states, own) for mode in modes], 1)


def modes_of(folder: Path) -> tuple[str, ...]:
    """The kinds of pooling that the folder asks for; a mean where it says nothing. Raises `ModelUnavailable`."""
    steps = weights.read_json(folder / "modules.json", missing=[])
    kinds = [str(step.get("type", "")).rpartition(".")[2] for step in steps]
    if kinds and kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelUnavailable(
            f"modules.json asks for {', '.join(kinds)}; served are Transformer, Pooling and Normalize, in this order."
            " For another step write an engine class, see docs/models.md."
        )
    place = steps[1]["path"] if steps else "1_Pooling"
    if Path(place).name != place:
        raise ModelUnavailable(f"modules.json names the folder {place!r}, which is not a folder beside it.")
    saved = weights.read_json(folder / place / "config.json", missing={})
    return _modes(saved) if saved or steps else MEAN


def _modes(saved: dict[str, Any]) -> tuple[str, ...]:
    named = saved.get("pooling_mode") or []
    asked = [str(name).lower() for name in named] if isinstance(named, list) else str(named).lower().split("+")
    asked += [_FLAGS.get(name, name) for name, on in saved.items() if name.startswith("pooling_mode_") and on is True]
    unknown = [name for name in asked if name not in POOLS]
    if unknown or not asked:
        raise ModelUnavailable(
            f"the pooling {', '.join(unknown) or 'of its Pooling module'} is not known; known are {', '.join(POOLS)}."
        )
    return tuple(name for name in POOLS if name in asked)
