"""Which rows can share a forward of the model, and taking a forward's answer apart again."""

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


class Together(enum.IntEnum):
    """Which rows may share a forward; the greater the stricter."""

    PADDED = 0  # of any lengths
    EQUAL = 1  # of one length: nothing is padded
    ALONE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the model reads of an item. Most items are one row; zero-shot has one a label, a long text one a stride."""

    item: int  # place in the batch
    features: Any  # a dict, or a dict-like of transformers
    own: Mapping[str, Any] = field(default_factory=dict)  # parameters of the forward, in place of those of its call

    @property
    def tokens(self) -> int:
        return self.features["input_ids"].shape[1] if "input_ids" in self.features else 0


def groups(rows: Sequence[Row], *, limit: int, together: Together) -> Iterator[list[Row]]:
    """Rows that may be stacked, at most `limit` together."""
    limit = 1 if together is Together.ALONE else limit
    stacks: dict[Any, list[Row]] = {}
    for row in rows:
        stacks.setdefault((_shape(row.features, together), *sorted(row.own.items())), []).append(row)
    for stack in stacks.values():
        for start in range(0, len(stack), limit):
            yield stack[start : start + limit]


def _shape(features: Any, together: Together) -> tuple[Any, ...]:
    """Equal for rows that stack. Only tokens under a mask may differ in length: padding sound changes the answer, as
    convolutions and group norms see it, and images have no padding at all."""
    padded = together is Together.PADDED and "input_ids" in features and "attention_mask" in features
    return tuple(
        (name, tuple(value.shape[2 if padded else 1 :]) if isinstance(value, torch.Tensor) else None)
        for name, value in sorted(features.items())
    )


def forward(
    rows: Sequence[Row], run: Callable[..., Any], collate: Callable[..., Any], parameters: dict[str, Any]
) -> list[Any]:
    """One forward of the model; an output a row, each as if it had run alone. Rows of a group have the same of their
    own."""
    parameters = {**parameters, **rows[0].own}
    if len(rows) == 1:
        return [run(dict(rows[0].features), **parameters)]
    output = run(collate([row.features for row in rows]), **parameters)
    return [_part(output, place, len(rows)) for place in range(len(rows))]


def _part(output: Any, place: int, count: int) -> Any:
    """Of a batch's output, what belongs to one row: what is not by row, as caches and states of each layer, is left."""
    parts = {}
    for name, value in output.items():
        if isinstance(value, torch.Tensor) and value.dim() and len(value) == count:
            parts[name] = value[place : place + 1]
        elif isinstance(value, list) and len(value) == count:
            parts[name] = value[place]
        elif value is None:
            parts[name] = None
    return type(output)(parts)
