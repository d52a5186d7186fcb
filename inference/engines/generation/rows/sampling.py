"""The choice of each row's next token from the model's scores, as `generate` chooses it for that row alone."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from inference.engines.generation.rows.row import GeneratedRow
from inference.engines.runtime.engine_calls import isolate_failing_items
from inference.errors import BadOutput, InferenceError

# These warpers read only the scores, so that rows with equal settings share a call.
WARPERS = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper, TypicalLogitsWarper)


def choose_tokens(rows: Sequence[GeneratedRow], scores: torch.Tensor) -> list[int | InferenceError]:
    """Return each row's next token, or the error it fails with. `scores` is [rows, vocabulary], float32."""
    best, tokens = scores.max(-1)
    chosen: list[int | InferenceError] = list(tokens.tolist())
    groups: dict[Any, list[int]] = defaultdict(list)
    for place, bad in enumerate(best.isnan().tolist()):
        row = rows[place]
        if bad:
            chosen[place] = BadOutput("The model's scores for the next token are not numbers.")
        elif row.samples or row.processors:
            groups[_make_group_key(row)].append(place)
    for places in groups.values():
        made = isolate_failing_items(
            lambda part: _process_scores([rows[place] for place in part], scores[part]), places
        )
        for place, values in zip(places, made, strict=True):
            chosen[place] = (
                values
                if isinstance(values, InferenceError)
                else isolate_failing_items(_choose_token, [(rows[place], values)])[0]
            )
    return chosen


def _make_group_key(row: GeneratedRow) -> Hashable:
    """Return a key that is equal for rows whose scores can be processed together."""
    if not all(type(processor) in WARPERS for processor in row.processors):
        return row
    return row.samples, *((type(processor), *sorted(vars(processor).items())) for processor in row.processors)


def _process_scores(rows: Sequence[GeneratedRow], scores: torch.Tensor) -> Any:
    """Return the processed scores, or for rows that sample the probability of each token."""
    if rows[0].processors:
        tokens = torch.tensor([rows[0].tokens], device=scores.device)  # only a lone row's processors read them
        scores = rows[0].processors(tokens, scores)
    return scores.softmax(-1) if rows[0].samples else scores


def _choose_token(given: Sequence[tuple[GeneratedRow, torch.Tensor]]) -> list[int]:
    [(row, values)] = given
    if row.samples:
        return [int(torch.multinomial(values[None], 1, generator=row.generator))]
    return [int(values.argmax())]
