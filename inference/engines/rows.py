"""Which rows can share a forward of the model, and taking a forward's answer apart again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.pipelines.pt_utils import PipelineIterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the model reads of an item. Most items are one row; zero-shot has one a label, a long text one a stride."""

    item: int  # place in the batch
    features: Any  # a dict, or a dict-like of transformers

    @property
    def tokens(self) -> int:
        return self.features["input_ids"].shape[1] if "input_ids" in self.features else 0


def groups(rows: Sequence[Row], *, limit: int, exact: bool) -> Iterator[list[Row]]:
    """Rows that may be stacked, at most `limit` together; `exact`: only of one length, so that nothing is padded."""
    stacks: dict[Any, list[Row]] = {}
    for row in rows:
        stacks.setdefault(_shape(row.features, exact), []).append(row)
    for stack in stacks.values():
        for start in range(0, len(stack), limit):
            yield stack[start : start + limit]


def _shape(features: Any, exact: bool) -> tuple[Any, ...]:
    """Equal for rows that stack. Only tokens under a mask may differ in length: padding sound changes the answer, as
    convolutions and group norms see it, and images have no padding at all."""
    padded = not exact and "input_ids" in features and "attention_mask" in features
    return tuple(
        (name, tuple(value.shape[2 if padded else 1 :]) if isinstance(value, torch.Tensor) else None)
        for name, value in sorted(features.items())
    )


def forward(
    rows: Sequence[Row], run: Callable[..., Any], collate: Callable[..., Any], parameters: dict[str, Any]
) -> list[Any]:
    """One forward of the model; an output a row, each as if it had run alone."""
    if len(rows) == 1:
        return [run(dict(rows[0].features), **parameters)]
    batch = collate([row.features for row in rows])
    return list(PipelineIterator([batch], run, parameters, loader_batch_size=len(rows)))
