"""The log probabilities of the tokens of prompts and answers, for requests that ask for them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor

from inference.engines.generation.rows.growing_text import Decoder, GrowingText
from inference.engines.stepper import TokenLogprob
from inference.errors import BadOutput

FIELD = "parameters.logprobs"
LEAST = -9999.0  # of a token that is forbidden: JSON has no infinity, and OpenAI writes this number
AT_ONCE = 32  # positions of a prompt whose log probabilities are computed together
Best = list[tuple[int, float]]  # tokens with their log probabilities, the likeliest first


class TokenLogprobs(LogitsProcessor):
    """A processor that leaves the scores as they are, and keeps log probabilities for each row.

    It stands before those of grammars and of sampling, and behind penalties. It may be called again for a step, as
    when memory was short.
    """

    def __init__(self, decoder: Decoder, *, top: int, prompt: int) -> None:
        """Take how many of a step's likeliest tokens are kept, and the tokens of the prompt with its padding."""
        self._decoder, self._top, self._prompt = decoder, top, prompt
        self._last: dict[int, tuple[int, torch.Tensor]] = {}  # by row: a step, and its log probabilities, [vocabulary]
        self._best: dict[int, dict[int, Best]] = {}  # by row and step
        self._chosen: dict[int, dict[int, float]] = {}  # by row and step, of the token that was generated

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Keep what the scores, which are [rows, vocabulary], say of the next tokens, and return them."""
        found = _compute_logprobs(scores)
        answers = zip(input_ids[:, self._prompt :].tolist(), _list_best(found, self._top), strict=True)
        for row, (tokens, best) in enumerate(answers):
            self._note_last_token(row, tokens)
            self._last[row] = len(tokens), found[row]
            self._best.setdefault(row, {})[len(tokens)] = best
        return scores

    def _note_last_token(self, row: int, tokens: Sequence[int]) -> None:
        step, found = self._last.get(row, (-1, None))
        if found is not None and step == len(tokens) - 1:
            self._chosen.setdefault(row, {})[step] = float(found[tokens[-1]])

    def describe_tokens(self, row: int, tokens: Sequence[int], context: Sequence[int]) -> list[TokenLogprob]:
        """Return the descriptions of all generated tokens of a row. `context` are the last tokens before them."""
        text, described = GrowingText(self._decoder, context=context), list[TokenLogprob]()
        for count, token in enumerate(tokens, 1):
            described.append(self.describe_last_token(row, tokens[:count], text))
            text.add_token(token)
        return described

    def describe_last_token(self, row: int, tokens: Sequence[int], text: GrowingText) -> TokenLogprob:
        """Return the last of a row's generated tokens as Hugging Face's text generation describes it.

        `text` has taken the tokens before it. `start` is the length of their text, in which nothing changes any more.
        The likeliest tokens of the step are beside the one that was chosen.
        """
        self._note_last_token(row, tokens)
        step = len(tokens) - 1
        logprob, best = self._chosen.get(row, {}).get(step, LEAST), self._best.get(row, {}).get(step, [])
        token, likeliest = _describe_token(self._decoder, tokens[-1], logprob, best, text.last_tokens)
        return {**token, "start": len(text.value)}, likeliest


class PromptLogprobs:
    """The log probabilities of one prompt's tokens. They are read piece by piece, from the beginning of the prompt."""

    def __init__(self, decoder: Decoder, *, top: int, prompt: Sequence[int], starts: Sequence[int] = ()) -> None:
        """Take how many of the likeliest tokens are kept of each position, and the tokens of the prompt.

        `starts` are their places in the prompt's text, if they are known.
        """
        self._decoder, self._top, self._prompt = decoder, top, list(prompt)
        self._starts: list[dict[str, int]] = [{"start": start} for start in starts] or [{} for _ in prompt]
        self._logprobs: list[float | None] = [None]  # of the tokens so far: nothing stands before the first
        self._best: list[Best] = [[]]

    @property
    def is_complete(self) -> bool:
        return len(self._logprobs) == len(self._prompt)

    def read_scores(self, first: int, scores: torch.Tensor) -> None:
        """Read the scores, which are [positions, vocabulary], of the tokens behind each position from `first` on.

        What was known of these tokens is replaced. Raises `BadOutput` if the scores are not numbers.
        """
        del self._logprobs[first + 1 :], self._best[first + 1 :]
        wanted = self._prompt[first + 1 : first + 1 + len(scores)]
        for start in range(0, len(wanted), AT_ONCE):
            tokens = wanted[start : start + AT_ONCE]
            found = _compute_logprobs(scores[start : start + len(tokens)])
            own = found.gather(-1, torch.tensor(tokens, device=found.device)[:, None])[:, 0]
            if own.isnan().any():
                raise BadOutput("The model's scores for the tokens of a prompt are not numbers.")
            self._logprobs += own.tolist()
            self._best += _list_best(found, self._top)

    def describe_tokens(self) -> dict[str, Any]:
        """Return what the details of an answer have of the tokens of its prompt."""
        found = list[TokenLogprob]()
        scored = zip(self._prompt, self._starts, self._logprobs, self._best, strict=True)
        for place, (token, start, logprob, best) in enumerate(scored):
            before = self._prompt[max(0, place - 1) : place]
            described, likeliest = _describe_token(self._decoder, token, logprob, best, before)
            found.append(({**described, **start}, likeliest))
        return {"prefill": [token for token, _ in found], "prefill_top_tokens": [likeliest for _, likeliest in found]}


def count_numbers_per_token(top: int) -> int:
    """Return the size of a prompt's token in an answer, in numbers, with `top` others in its place."""
    return 7 + 5 * top  # six of the token, five of each other, and one of their list


def convert_offsets_to_starts(text: str, offsets: Sequence[Sequence[int]]) -> list[int]:
    """Return where the tokens of a text start, by their offsets as a tokenizer gives them.

    A tokenizer may leave the blanks before a token out of its offsets. One that adds a token, such as that which begins
    a text, gives it no characters: it starts where the one before ends.
    """
    starts, before = list[int](), 0
    for start, end in offsets:
        blanks_at = before + len(text[before:start].rstrip())
        starts.append(min(start, blanks_at) if start < end else blanks_at)
        before = max(before, end)
    return starts


def _compute_logprobs(scores: torch.Tensor) -> torch.Tensor:
    return scores.float().log_softmax(-1).clamp(min=LEAST)


def _list_best(found: torch.Tensor, top: int) -> list[Best]:
    """Return the likeliest tokens of each row of log probabilities, which are [rows, vocabulary]."""
    likeliest = found.topk(min(top, found.shape[-1]))
    pairs = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    return [list(zip(*pair, strict=True)) for pair in pairs]


def _describe_token(
    decoder: Decoder, token: int, logprob: float | None, best: Best, before: Sequence[int]
) -> TokenLogprob:
    """Return a token and the likeliest in its place, behind the tokens `before`."""
    likeliest = [{**decoder.describe_token(other, before), "logprob": value} for other, value in best]
    return {**decoder.describe_token(token, before), "logprob": logprob}, likeliest


def make_token_details(scores: Sequence[TokenLogprob], *, seed: int | None) -> dict[str, Any]:
    """Return what the details of an answer have of its tokens. `seed` is that of a text which was sampled."""
    tokens, likeliest = [token for token, _ in scores], [likeliest for _, likeliest in scores]
    return {"seed": seed, "prefill": [], "tokens": tokens, "top_tokens": likeliest}


def find_logprobs_processor(processors: Sequence[Any]) -> TokenLogprobs | None:
    """Return the processor among those of a row that keeps its log probabilities."""
    return next((each for each in processors if isinstance(each, TokenLogprobs)), None)


def is_beam_search(run: Mapping[str, Any], config: Any) -> bool:
    """Return True if a call searches by beams, whose rows change places."""
    return int(run.get("num_beams") or getattr(config, "num_beams", None) or 1) > 1
