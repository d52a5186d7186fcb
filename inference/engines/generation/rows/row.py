"""A row: one prompt and what is generated from it, with settings of its own."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

from inference.engines.generation.rows.ending import Ending
from inference.engines.generation.rows.growing_text import GrowingText


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """From its join to its end."""

    key: Hashable
    features: Any  # of the prompt, as the pipeline's preprocess has made them
    after: dict[str, Any]  # parameters of the pipeline's postprocess
    details: bool  # are asked for
    tokens: list[int]  # of the prompt, then with those that are generated
    prompt: int  # tokens
    longest: int  # tokens, prompt and all
    ends: frozenset[int]  # tokens that end it
    stops: frozenset[int]  # tokens that the request asks it to end at
    processors: Any  # of the scores, as `generate` makes them
    samples: bool
    generator: torch.Generator
    text: GrowingText
    cache: Any = None  # a `Cache`, of a long prompt, while it is read in pieces
    ending: Ending | None = None
    was_short: bool = False  # of memory, when it was alone

    @property
    def read(self) -> int:
        """Tokens that its own cache holds."""
        return int(self.cache.get_seq_length()) if self.cache is not None else 0

    @property
    def cells(self) -> int:
        """Columns that it has: the last token has none before the next step."""
        return len(self.tokens) - 1

    def take(self, token: int) -> None:
        """A token is generated."""
        self.tokens.append(token)
        self.text.add(token)
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
        self.end(reason)

    def end(self, reason: str) -> None:
        """No token follows."""
        self.text.end()
        self.ending = Ending(
            reason=reason if self.text.stop is None else "stop_sequence",
            prompt=self.prompt, generated=len(self.tokens) - self.prompt,
            found=self.text.alone(self.tokens[self.prompt :]), text=self.text.final, told=self.details,
        )  # fmt: skip
