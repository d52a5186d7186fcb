"""The choice of rows that share a forward of the model, and the parts of its output that belong to each row."""

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


class BatchingMode(enum.IntEnum):
    """The rule for rows that share a forward: the greater, the stricter."""

    PADDED = 0  # rows of any lengths
    EQUAL = 1  # rows of one length: nothing is padded
    ALONE = 2  # each row by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRow:
    """The features that the model reads of an item, or of a part of it.

    Most items are one row. Zero-shot classification has one row a label, a long text one row a stride.
    """

    item: int  # the item's place in the batch
    features: Any  # a dict, or a dict-like object of transformers
    own: Mapping[str, Any] = field(default_factory=dict)  # parameters of this row's forward, before those of the call

    @property
    def token_count(self) -> int:
        return self.features["input_ids"].shape[1] if "input_ids" in self.features else 0


def group_stackable_rows(rows: Sequence[InputRow], *, limit: int, mode: BatchingMode) -> Iterator[list[InputRow]]:
    """Yield groups of rows that may be stacked, each of at most `limit` rows."""
    limit = 1 if mode is BatchingMode.ALONE else limit
    stacks: dict[Any, list[InputRow]] = {}
    for row in rows:
        stacks.setdefault((_make_stack_key(row.features, mode), *sorted(row.own.items())), []).append(row)
    for stack in stacks.values():
        for start in range(0, len(stack), limit):
            yield stack[start : start + limit]


def _make_stack_key(features: Mapping[str, Any], mode: BatchingMode) -> tuple[Any, ...]:
    """Return a key that is equal for rows that stack.

    Only tokens under a mask may differ in length. Padding of sound changes the answer, as convolutions and group norms
    see it, and images have no padding at all.
    """
    padded = mode is BatchingMode.PADDED and "input_ids" in features and "attention_mask" in features
    return tuple(
        (name, tuple(value.shape[2 if padded else 1 :]) if isinstance(value, torch.Tensor) else None)
        for name, value in sorted(features.items())
    )


def run_group(
    rows: Sequence[InputRow], run: Callable[..., Any], collate: Callable[..., Any], parameters: dict[str, Any]
) -> list[Any]:
    """Run one forward of the model for the rows of a group.

    Return an output for each row, as if the row had run alone. All rows of a group have the same parameters of their
    own.
    """
    parameters = {**parameters, **rows[0].own}
    if len(rows) == 1:
        return [run(dict(rows[0].features), **parameters)]
    output = run(collate([row.features for row in rows]), **parameters)
    return [_slice_output(output, place, len(rows)) for place in range(len(rows))]


def _slice_output(output: dict[str, Any], place: int, count: int) -> Any:
    """Return the part of a batch's output that belongs to one row.

    What is not by row, such as caches and the states of each layer, is left out.
    """
    parts = {}
    for name, value in output.items():
        if isinstance(value, torch.Tensor) and value.dim() and len(value) == count:
            parts[name] = value[place : place + 1]
        elif isinstance(value, list) and len(value) == count:
            parts[name] = value[place]
        elif value is None:
            parts[name] = None
    return type(output)(parts)
