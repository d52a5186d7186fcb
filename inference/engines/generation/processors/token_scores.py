"""The log probabilities of the tokens that rows generate, for requests that ask for them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import LogitsProcessor

from inference.engines.generation.rows.growing_text import Decoder, GrowingText
from inference.engines.inputs.stops import read_special_tokens
from inference.engines.stepper import TokenScore

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FIELD = "parameters.logprobs"
LEAST = -9999.0  # of a token that is forbidden: JSON has no infinity, and OpenAI writes this number
Best = list[tuple[int, float]]  # tokens with their log probabilities, the likeliest first


class TokenScores(LogitsProcessor):
    """A processor that leaves the scores as they are, and keeps log probabilities for each row.

    It stands before those of grammars and of sampling, and behind penalties. It may be called again for a step, as
    when memory was short.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", decoder: Decoder, *, top: int, prompt: int) -> None:
        """Take how many of a step's likeliest tokens are kept, and the tokens of the prompt with its padding."""
        self._tokenizer, self._decoder = tokenizer, decoder
        self._top, self._prompt = top, prompt
        self._special = frozenset(read_special_tokens(tokenizer).values())
        self._last: dict[int, tuple[int, torch.Tensor]] = {}  # by row: a step, and its log probabilities, [vocabulary]
        self._best: dict[int, dict[int, Best]] = {}  # by row and step
        self._chosen: dict[int, dict[int, float]] = {}  # by row and step, of the token that was generated

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Keep what the scores, which are [rows, vocabulary], say of the next tokens, and return them."""
        found = scores.float().log_softmax(-1).clamp(min=LEAST)
        likeliest = found.topk(self._top)
        best = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
        for row, (tokens, pair) in enumerate(zip(input_ids[:, self._prompt :].tolist(), best, strict=True)):
            self._note_last_token(row, tokens)
            self._last[row] = len(tokens), found[row]
            self._best.setdefault(row, {})[len(tokens)] = list(zip(*pair, strict=True))
        return scores

    def _note_last_token(self, row: int, tokens: Sequence[int]) -> None:
        step, found = self._last.get(row, (-1, None))
        if found is not None and step == len(tokens) - 1:
            self._chosen.setdefault(row, {})[step] = float(found[tokens[-1]])

    def describe_tokens(self, row: int, tokens: Sequence[int], context: Sequence[int]) -> list[TokenScore]:
        """Return the descriptions of all generated tokens of a row. `context` are the last tokens before them."""
        text, described = GrowingText(self._decoder, context=context), list[TokenScore]()
        for count, token in enumerate(tokens, 1):
            described.append(self.describe_last_token(row, tokens[:count], text))
            text.add_token(token)
        return described

    def describe_last_token(self, row: int, tokens: Sequence[int], text: GrowingText) -> TokenScore:
        """Return the last of a row's generated tokens as Hugging Face's text generation describes it.

        `text` has taken the tokens before it. `start` is the length of their text, in which nothing changes any more.
        The likeliest tokens of the step are beside the one that was chosen.
        """
        self._note_last_token(row, tokens)
        step, before = len(tokens) - 1, text.last_tokens

        def describe(token: int, logprob: float) -> dict[str, Any]:
            shown = self._decoder.decode_after(before, [token]) or str(self._tokenizer.decode([token]))
            return {"id": token, "text": shown, "logprob": logprob, "special": token in self._special}

        chosen = describe(tokens[-1], self._chosen.get(row, {}).get(step, LEAST))
        best = self._best.get(row, {}).get(step, ())
        return {**chosen, "start": len(text.value)}, [describe(*each) for each in best]


def make_score_details(scores: Sequence[TokenScore]) -> dict[str, Any]:
    """Return what the details of an answer have of its tokens."""
    return {"tokens": [token for token, _ in scores], "top_tokens": [likeliest for _, likeliest in scores]}


def find_scores(processors: Sequence[Any]) -> TokenScores | None:
    """Return the processor among those of a row that keeps its log probabilities."""
    return next((each for each in processors if isinstance(each, TokenScores)), None)


def is_beam_search(run: Mapping[str, Any], config: Any) -> bool:
    """Return True if a call searches by beams, whose rows change places."""
    return int(run.get("num_beams") or getattr(config, "num_beams", None) or 1) > 1
