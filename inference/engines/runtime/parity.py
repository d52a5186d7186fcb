"""The trial whether a model answers texts together as it answers each alone. It runs when the model is loaded.

The answers of some architectures depend on padding (FNet, Nyströmformer, Perceiver …), those of others on the other
texts of the batch.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from inference.engines.runtime.exception_diagnosis import describe_exception, is_device_failure, is_out_of_memory
from inference.engines.runtime.json_values import pair_leaves
from inference.engines.runtime.row_groups import BatchingMode, InputRow
from inference.errors import InvalidInput

if TYPE_CHECKING:
    from transformers import Pipeline, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

# Their lengths are as far apart as a few tokens allow, and two are of one length.
TEXTS = (
    "a",
    "a b c d e f g",
    "g f e d c b a",
    "in the end it was not so much that he ran as that all of us let him go on, and on: a long day for an old man",
)

MOST_SPECIAL = 8  # special tokens that a trial text has at most

Answer = Sequence[torch.Tensor]  # to one text: a tensor, or for a text that is generated the scores of each step
Answers = Callable[[Sequence[Any], BatchingMode], list[Answer]]

# An answer may change by these parts of its largest value, as the order of sums differs with padding and with the size
# of a batch. They depend on the type that products are computed in: padding changes the scores of SmolLM2-135M by 0.037
# in bfloat16 and by 0.005 in float16, which has three bits more, as has TF32.
TOLERANCE = 1e-4
TEN_BITS = 0.02
SHORT_TYPES = 0.05
HUGE = 1e30  # scores at least so large mark what may not be chosen


def make_special_token_texts(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Make texts that hold the tokenizer's special tokens, as users may write them.

    Each token that may be chosen for padding is the end of one text, as decoders that classify score a text's end.
    """
    named = list(dict.fromkeys(tokenizer.all_special_tokens))[:MOST_SPECIAL]
    last = [tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token]
    others = [token for token in named if token not in last]
    return [f"the cat {''.join(others)}", *(f"the cat{token}" for token in dict.fromkeys(last) if token)]


def make_trial_texts(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Make texts of several lengths, one of which ends in the token that others are padded with."""
    return [f"the cat{tokenizer.pad_token}", *TEXTS] if tokenizer.pad_token else list(TEXTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingChoice:
    """The way in which a model's texts run together."""

    mode: BatchingMode
    note: str = ""  # for the model's page; empty where padding changes no answer


class Trial:
    """A trial of one model, which keeps the model's answer to each input alone.

    `answers` runs inputs together in a given way. `tolerance` is that of the type in which the model computes, whatever
    the type of its answers is.
    """

    def __init__(self, answers: Answers, inputs: Sequence[Any], tolerance: float = TOLERANCE) -> None:
        self._answers, self._tolerance = answers, tolerance
        self.inputs: list[Any] = []  # inputs that the model can read
        self._alone: list[Answer] = []
        problems: list[Exception] = []
        for value in inputs:
            try:
                self._alone += answers([value], BatchingMode.ALONE)
            except (InvalidInput, RuntimeError, ValueError, IndexError) as error:
                if is_device_failure(error) or is_out_of_memory(error):
                    raise
                problems.append(error)  # some models cannot read a text of one token
            else:
                self.inputs.append(value)
        if problems and not self.inputs:  # a model that can read no input is broken
            raise problems[-1]
        problems.clear()  # their tracebacks hold tensors

    def measure_difference(self, mode: BatchingMode) -> float:
        """Return how far the answers together are from those alone, in tolerances: up to 1 they are the same."""
        return self.measure_answers_difference(self._answers(self.inputs, mode))

    def measure_answers_difference(self, found: Sequence[Answer]) -> float:
        """Return how far answers to `inputs` that were found in another way are from those alone, in tolerances."""
        pairs = zip(found, self._alone, strict=True)
        return max((_compare_answer(*pair, self._tolerance) for pair in pairs), default=0.0)

    def has_parity(self, mode: BatchingMode) -> bool:
        return self.measure_difference(mode) <= 1.0

    def choose_batching_mode(self) -> BatchingChoice:
        """Return how inputs are to run: padded if that changes no answer, else in batches of one length, else alone."""
        padded = self._find_problem(BatchingMode.PADDED)
        if not padded:
            return BatchingChoice(mode=BatchingMode.PADDED)
        if not self._find_problem(BatchingMode.EQUAL):
            note = f"Padding {padded}: only inputs of one length share a batch."
            return BatchingChoice(mode=BatchingMode.EQUAL, note=note)
        if self._find_problem(BatchingMode.ALONE):
            note = "It answers the same input differently from call to call: each input runs alone."
        else:
            note = f"What else is in a batch {padded}: each input runs alone."
        return BatchingChoice(mode=BatchingMode.ALONE, note=note)

    def _find_problem(self, mode: BatchingMode) -> str:
        try:
            difference = self.measure_difference(mode)
        except Exception as error:
            logger.warning("a trial in a batch raised %s", describe_exception(error))
            return "makes it raise an exception, which the worker's log has"
        if difference <= 1.0:
            return ""
        return (
            "changes its answers" if math.isinf(difference) else f"changes its answers {difference:.2g} times too far"
        )


def are_alike(answers: object, expected: object) -> bool:
    """Return True if both are the same JSON, with numbers equal up to the last digits of a float32."""
    return all(
        math.isclose(found, wanted, rel_tol=1e-4, abs_tol=1e-4)
        if isinstance(found, float) and isinstance(wanted, float)
        else found == wanted
        for found, wanted in pair_leaves(answers, expected)
    )


def extract_row_tensors(output: Any, row: InputRow, pipe: Pipeline) -> Answer:
    """Return what the model computed for a row.

    That is the states or scores of its own tokens, of its masks, of its text, or of each step that it generated.
    """
    values = output["logits"] if "logits" in output else output[0]
    if "generated_sequence" in output:
        scores: Answer = values[0, 0].unbind(0)
        return scores
    if values.dim() < 3:
        return [values]
    own = values[:, : row.token_count]
    return [own[row.features["input_ids"] == pipe.tokenizer.mask_token_id] if pipe.task == "fill-mask" else own]


def _compare_answer(values: Answer, expected: Answer, tolerance: float) -> float:
    """Return the largest difference in tolerances, up to the first step at which another token is chosen.

    From that step on it is another text.
    """
    largest = 0.0
    for value, other in zip(values, expected, strict=False):
        largest = max(largest, measure_relative_difference(value, other) / tolerance)
        if value.shape != other.shape or not torch.equal(value.argmax(-1), other.argmax(-1)):
            break
    return largest


def measure_relative_difference(values: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference as a part of the largest value; infinity if the shapes differ."""
    if values.shape != expected.shape:
        return math.inf
    values, expected = values.double(), expected.double()
    plain = expected[expected.abs() < HUGE]
    scale = max(1.0, plain.abs().max().item()) if plain.numel() else 1.0
    relative_difference = torch.where(torch.isclose(values, expected, equal_nan=True), 0.0, (values - expected).abs())
    return float(relative_difference.nan_to_num(math.inf).max()) / scale
