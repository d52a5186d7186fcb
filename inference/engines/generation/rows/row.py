"""A row: one prompt with what is generated from it, and with settings of its own."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from inference.engines.generation.processors.logprobs import (
    PromptLogprobs,
    TokenLogprobs,
    find_logprobs_processor,
    make_token_details,
)
from inference.engines.generation.rows.answer_ending import Ending
from inference.engines.generation.rows.growing_text import GrowingText
from inference.engines.stepper import TokenLogprob


@dataclass(slots=True, kw_only=True, eq=False)
class GeneratedRow:
    """A row of an open batch, from its join to its end."""

    key: Hashable
    features: Any  # features of the prompt, as the pipeline's preprocess has made them
    after: dict[str, Any]  # parameters of the pipeline's postprocess
    details: bool  # True if the request asks for details
    tokens: list[int]  # tokens of the prompt, followed by those that are generated
    prompt: int  # number of tokens of the prompt
    longest: int  # tokens that the prompt and the answer may have together
    ends: frozenset[int]  # tokens at which the model ends the text
    stops: frozenset[int]  # special tokens at which the request asks the text to end
    processors: Any  # logits processors, as `generate` makes them
    samples: bool  # True if tokens are drawn at random
    generator: torch.Generator
    text: GrowingText
    prompt_logprobs: PromptLogprobs | None = None  # of a request that asks for its prompt's log probabilities
    cache: Any = None  # the `Cache` of a long prompt while it is read in pieces
    ending: Ending | None = None
    was_short: bool = False  # True if memory was short while it was the only row
    token_logprobs: TokenLogprobs | None = field(init=False)  # None if no log probabilities are wanted
    scores: list[TokenLogprob] = field(default_factory=list)  # of the tokens that are generated
    returned_scores: int = 0

    def __post_init__(self) -> None:
        self.token_logprobs = find_logprobs_processor(self.processors or ())

    @property
    def own_cache_length(self) -> int:
        """Number of tokens that its own cache holds."""
        return int(self.cache.get_seq_length()) if self.cache is not None else 0

    @property
    def needs_prompt_logprobs(self) -> bool:
        """True if log probabilities of its prompt are still to be computed."""
        return self.prompt_logprobs is not None and not self.prompt_logprobs.is_complete

    @property
    def column_count(self) -> int:
        """Number of columns that it has: the last token has none before the next step."""
        return len(self.tokens) - 1

    def add_token(self, token: int) -> None:
        """Add a token that was generated, and end the row if it is the last one, or one too many."""
        if len(self.tokens) >= self.longest:
            self.end_row("length")
            return
        self.tokens.append(token)
        if self.token_logprobs:
            self.scores.append(self.token_logprobs.describe_last_token(0, self.tokens[self.prompt :], self.text))
        self.text.add_token(token)
        if token in self.stops:
            reason = "stop_sequence"
        elif token in self.ends:
            reason = "eos_token"
        elif len(self.tokens) >= self.longest:
            reason = "length"
        elif self.text.stop is not None:
            reason = "stop_sequence"
        else:
            return
        self.end_row(reason)

    def end_row(self, reason: str) -> None:
        """End the row, as no token follows."""
        self.text.end_text()
        generated = self.tokens[self.prompt :]
        self.ending = Ending(
            reason=reason if self.text.stop is None else "stop_sequence",
            prompt=self.prompt,
            generated=len(generated),
            found=self.text.decode_alone(generated),
            text=self.text.final_text,
            has_details=self.details,
            tokens=self._make_token_details(),
        )

    def _make_token_details(self) -> dict[str, Any]:
        """Return the details of a request that asks for the tokens of its answer or of its prompt."""
        seed = self.generator.initial_seed() if self.samples else None
        found = make_token_details(self.scores, seed=seed) if self.token_logprobs else {}
        return found | (self.prompt_logprobs.describe_tokens() if self.prompt_logprobs else {})

    def take_new_scores(self) -> list[TokenLogprob]:
        """Return the scores of the tokens whose text was returned, and whose scores were not returned before."""
        begun = [each for each in self.scores[self.returned_scores :] if each[0]["start"] < self.text.returned_length]
        self.returned_scores += len(begun)
        return [each for each in begun if not each[0]["special"]]
