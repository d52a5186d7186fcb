"""An engine that generates step by step: a word a step, of all rows at once. Rows join and leave between steps."""

import random
import time
from collections.abc import Hashable, Mapping
from typing import Any

from inference.engines.base import Engine
from inference.engines.stepper import Progress, Stepper
from inference.errors import InvalidInput

WORDS = ("a", "queue", "that", "forms", "batches", "and", "tells", "its", "clients", "what", "they", "asked")


class Rows(Stepper):
    capacity = 1000

    def __init__(self) -> None:
        self.rows: dict[Hashable, tuple[list[str], int, random.Random]] = {}

    def join(self, key: Hashable, value: Any, parameters: Mapping[str, Any], *, seed: int) -> None:
        if not isinstance(value, str):
            raise InvalidInput("inputs: must be a string.")
        self.rows[key] = ([value], parameters.get("max_new_tokens", 20), random.Random(seed))

    def leave(self, key: Hashable) -> None:
        self.rows.pop(key, None)

    def finish(self, key: Hashable) -> Progress:
        """At its time limit a row answers with what it has."""
        words, _, _ = self.rows.pop(key)
        return Progress(key=key, answer=[{"generated_text": " ".join(words)}])

    def step(self) -> list[Progress]:
        time.sleep(0.02)  # a model would compute here
        return [self.next_word(key) for key in list(self.rows)]

    def next_word(self, key: Hashable) -> Progress:
        words, count, chance = self.rows[key]
        words.append(chance.choice(WORDS))
        text = f" {words[-1]}"
        if len(words) <= count:
            return Progress(key=key, text=text, tokens=1)
        self.leave(key)
        return Progress(key=key, text=text, tokens=1, answer=[{"generated_text": " ".join(words)}])

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def room(self) -> int:
        return self.capacity - sum(count for _, count, _ in self.rows.values())


class Babble(Engine):
    def load(self, device: str) -> None:
        self.stepper = Rows()

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        raise NotImplementedError("It has a stepper, which is asked in its place.")
