"""The trial whether a model's answers can be generated step by step. It runs when the model is loaded.

Prompts of several lengths join one after the other, and each must get the scores that `generate` has for it alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from inference.catalog import tasks
from inference.catalog.specs import ModelSpec
from inference.engines.generation.pipeline_stepper import PipelineStepper
from inference.engines.generation.rows import sampling
from inference.engines.generation.rows.requests import NotStepwise, Requests
from inference.engines.generation.rows.row import GeneratedRow
from inference.engines.runtime.parity import Answer, Trial
from inference.engines.stepper import OPEN

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MANY_STEPS = 100
ROOM = 1_000_000
# Parameters that a request may set beside the task's own, with which `PipelineStepper` still computes as `generate`
# does.
KNOWN = {
    "max_length", "min_length", "min_new_tokens", "no_repeat_ngram_size", "min_p", "epsilon_cutoff", "eta_cutoff",
    "top_h", "bad_words_ids", "suppress_tokens", "sequence_bias", "exponential_decay_length_penalty",
    "renormalize_logits", "remove_invalid_values", "add_special_tokens", "grammar", "logprobs", "tools",
    "prompt_logprobs", "prompt_only",
}  # fmt: skip
CHANGING_ROPE = ("dynamic", "longrope")  # kinds of RoPE by which a row's positions depend on its longest neighbour


def find_problem(spec: ModelSpec, requests: Requests, trial: Trial) -> str:
    """Return why answers cannot be generated step by step, or an empty string if they can."""
    return _find_exclusion(spec, requests.pipe.model) or _find_difference(spec, requests, trial)


def _find_exclusion(spec: ModelSpec, model: PreTrainedModel) -> str:
    config = model.config.get_text_config()
    if model.config.is_encoder_decoder:
        return "an encoder reads its prompts"
    if any(kind in str(getattr(config, "rope_parameters", "")) for kind in CHANGING_ROPE):
        return "its positions depend on the longest text of a batch"
    if unknown := spec.parameters.keys() - tasks.find_task(spec.task).parameters.keys() - KNOWN:
        return f"its parameters {', '.join(sorted(unknown))} may ask for another way to generate"
    return ""


def _find_difference(spec: ModelSpec, requests: Requests, trial: Trial) -> str:
    defaults = {name: found.default for name, found in spec.parameters.items() if found.default is not None}
    try:
        requests.make_row("defaults", trial.inputs[0], {**defaults, "max_new_tokens": 1}, seed=0)
    except NotStepwise as error:
        return str(error)
    scores = _record_scores(requests, trial.inputs)
    return "" if all(scores) and trial.measure_answers_difference(scores) <= 1.0 else "its answers would change"


def _record_scores(requests: Requests, inputs: Sequence[Any]) -> list[Answer]:
    """Return the scores of each step of each input.

    The inputs join one step after the other, the longest last.
    """
    seen: dict[Hashable, list[torch.Tensor]] = defaultdict(list)

    def choose_and_record(rows: Sequence[GeneratedRow], scores: torch.Tensor) -> list[Any]:
        for row, own in zip(rows, scores, strict=True):
            seen[row.key].append(own.to("cpu", copy=True))  # as the scores that it is compared with
        return sampling.choose_tokens(rows, scores)

    batch = PipelineStepper(ROOM, requests, choose=choose_and_record)
    left = list(enumerate(inputs))
    for _ in range(MANY_STEPS):
        if left:
            key, value = left.pop(0)
            batch.join(key, value, {"max_new_tokens": 3, "do_sample": False}, seed=0)
        for progress in batch.step():
            if progress.answer is not OPEN and isinstance(progress.answer, Exception):
                raise progress.answer
        if not left and not len(batch):
            break
    return [seen[key] for key in range(len(inputs))]
