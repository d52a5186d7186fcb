"""An engine with no weights that generates step by step: the words that follow from its input, one a step.

An input {"text": "…", "fail": "crash", "at": 3} misbehaves as `tests.echo` does, once it has so many words, or as it
joins: "at": "join". A text that
begins with "held", or "held-NAME", has one word, and no more while there is a file of that name in DATA_DIR. With a
parameter `logprobs` each word has a log probability. In the catalog, options = { step_ms, capacity } say what a step
costs, and how many tokens all rows share.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inference.engines.base import Engine
from inference.engines.stepper import Progress, Stepper, TokenLogprob
from inference.errors import EngineError, InvalidInput
from tests import echo

NEW_TOKENS = 16


@dataclass(slots=True, eq=False)
class Row:
    value: Any
    most: int  # words
    has_scores: bool = False
    found: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return 1 + self.most


class Words(Stepper):
    def __init__(self, options: Mapping[str, Any]) -> None:
        self.step_s = options.get("step_ms", 0) / 1000
        self.capacity = options.get("capacity", 8192)
        self.waiting: dict[Hashable, Row] = {}
        self.rows: dict[Hashable, Row] = {}

    def join(self, key: Hashable, value: Any, parameters: Mapping[str, Any], *, seed: int) -> None:
        if isinstance(value, dict) and value.get("at") == "join":
            echo.misbehave(value)
        row = Row(value, parameters.get("max_new_tokens", NEW_TOKENS), has_scores="logprobs" in parameters)
        if row.tokens > self.capacity:
            raise InvalidInput(f"It needs {row.tokens} tokens of the {self.capacity} that there are.")
        self.waiting[key] = row

    def leave(self, key: Hashable) -> None:
        self.waiting.pop(key, None)
        self.rows.pop(key, None)

    def step(self) -> list[Progress]:
        self._let_in()
        if self.rows:
            time.sleep(self.step_s)  # what a step costs
        progress = [self._next(key, row) for key, row in self.rows.items() if not is_held(row)]
        self.rows = {key: row for key, row in self.rows.items() if len(row.found) < row.most}
        return progress

    def _let_in(self) -> None:
        for key, row in list(self.waiting.items()):
            if row.tokens > self._free:
                return
            self.rows[key] = self.waiting.pop(key)

    def _next(self, key: Hashable, row: Row) -> Progress:
        try:
            if isinstance(row.value, dict) and len(row.found) == row.value.get("at", 0):
                echo.misbehave(row.value)
        except ValueError as error:
            row.most = 0
            return Progress(key=key, answer=EngineError(str(error)))
        row.found.append(word(row.value, len(row.found)))
        text = row.found[-1] if len(row.found) == 1 else f" {row.found[-1]}"
        scores = [make_score(row.found, len(row.found))] if row.has_scores else []
        if len(row.found) < row.most:
            return Progress(key=key, text=text, tokens=1, scores=scores)
        answer: dict[str, Any] = {"generated_text": " ".join(row.found)}
        if row.has_scores:
            tokens = [make_score(row.found, count)[0] for count in range(1, row.most + 1)]
            answer["details"] = {"tokens": tokens, "top_tokens": [[]] * row.most}
        return Progress(key=key, text=text, tokens=1, scores=scores, answer=[answer])

    @property
    def _free(self) -> int:
        return self.capacity - sum(row.tokens for row in self.rows.values())

    def __len__(self) -> int:
        return len(self.waiting) + len(self.rows)

    @property
    def room(self) -> int:
        return max(0, self._free - sum(row.tokens for row in self.waiting.values()))


class WordsEngine(Engine):
    def load(self, device: str) -> None:
        self.stepper = Words(self.spec.options)

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        return [expected(value, parameters.get("max_new_tokens", NEW_TOKENS)) for value in inputs]


def make_score(words: Sequence[str], count: int) -> TokenLogprob:
    """Return the score of the last of so many words."""
    start = len(" ".join(words[: count - 1]))
    text = " ".join(words[:count])[start:]
    return {"id": count, "text": text, "logprob": -1.0 / count, "special": False, "start": start}, []


def is_held(row: Row) -> bool:
    text = text_of(row.value)
    return bool(row.found) and text.startswith(echo.HELD) and echo.is_held(text.split()[0])


def text_of(value: Any) -> str:
    if isinstance(value, list):  # a chat: what was said last
        value = value[-1]["content"]
    return value if isinstance(value, str) else str(value.get("text", ""))


def word(value: Any, place: int) -> str:
    return hashlib.sha256(f"{text_of(value)} {place}".encode("utf-8", "surrogatepass")).hexdigest()[:4]


def expected(value: Any, words: int) -> list[dict[str, str]]:
    return [{"generated_text": " ".join(word(value, place) for place in range(words))}]
