"""Parameters of OpenAI that change the scores of tokens, and that `generate` has under another name or not at all."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from inference.errors import InvalidInput

MOST_BIASED = 1024  # tokens
LARGEST_BIAS = 100.0


class CountPenalty(LogitsProcessor):
    """A processor that lowers the score of each token by how often the answer has it.

    The formula is OpenAI's: a token that the answer has c times loses c * frequency, and presence if c > 0.
    """

    def __init__(self, prompt: int, *, frequency: float, presence: float) -> None:
        self.prompt, self.frequency, self.presence = prompt, frequency, presence

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        answer = input_ids[:, self.prompt :]
        counts = torch.zeros_like(scores).scatter_add_(1, answer, torch.ones_like(answer, dtype=scores.dtype))
        return scores - self.frequency * counts - self.presence * (counts > 0)


def translate_penalties(run: Mapping[str, Any], *, prompt: int, vocabulary: int) -> dict[str, Any]:
    """Return the parameters of `generate` for those of a request.

    Args:
        run: The parameters of the request.
        prompt: Tokens of the prompt, its padding included.
        vocabulary: Tokens that the model has scores for.

    Raises `InvalidInput` for a bias of a token that is not there.
    """
    given = dict(run)
    frequency, presence = given.pop("frequency_penalty", 0.0), given.pop("presence_penalty", 0.0)
    if bias := given.pop("logit_bias", None):
        given["sequence_bias"] = [[[token], value] for token, value in _read_bias(bias, vocabulary).items()]
    if frequency or presence:
        penalty = CountPenalty(prompt, frequency=frequency, presence=presence)
        given["logits_processor"] = LogitsProcessorList([penalty])
    return given


def _read_bias(given: Mapping[str, Any], vocabulary: int) -> dict[int, float]:
    where = "parameters.logit_bias"
    if len(given) > MOST_BIASED:
        raise InvalidInput(f"{where}: must have at most {MOST_BIASED} tokens.", field=where)
    found: dict[int, float] = {}
    for token, value in given.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10 and int(token) < vocabulary):
            message = f"{where}: must have numbers of tokens below {vocabulary}, not {token[:20]!r}."
            raise InvalidInput(message, field=where)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST_BIAS:
            message = f"{where}.{token}: must be a number from -{LARGEST_BIAS:g} to {LARGEST_BIAS:g}."
            raise InvalidInput(message, field=where)
        found[int(token)] = float(value)
    return found
