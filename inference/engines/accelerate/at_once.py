"""Texts through the tokenizer in one call, and their answers off the model's output as a whole.

Item by item, as the pipelines go, costs 40 µs a text for the tokenizer and 70 µs for the answer.
"""

from collections.abc import Mapping
from typing import Any

import torch

from inference.engines.accelerate import outputs, tokens
from inference.engines.accelerate.install import Override
from inference.engines.beginnings import beginning


class AtOnce:
    """Of one pipeline."""

    def __init__(self, pipe: Any, task: str) -> None:
        self.pipe = pipe
        self.read = outputs.READS[task]
        self.encode = tokens.encoder(pipe.tokenizer)

    def tokens(self, texts: list[str], before: dict[str, Any]) -> Mapping[str, torch.Tensor] | None:
        """With the parameters of the pipeline's step before the model. None: item by item, with these."""
        return self._tokens([beginning(self.pipe.tokenizer, text) for text in texts], before)

    def answers(self, batch: Mapping[str, torch.Tensor], run: Any, after: dict[str, Any]) -> list[Any] | None:
        """To those tokens. None where going item by item finds what is wrong."""
        if "attention_mask" not in batch:
            return None
        lengths = batch["attention_mask"].sum(1).tolist()
        if 0 in lengths:
            return None
        return self.read(self.pipe, self.pipe.forward(batch, **run), lengths, **after)

    def _tokens(self, texts: list[str], parameters: dict[str, Any]) -> Mapping[str, torch.Tensor]:
        if self.encode and parameters == {"truncation": True}:
            return self.encode(texts)
        found: Mapping[str, torch.Tensor] = self.pipe.tokenizer(
            texts, **{**parameters, "padding": True, "return_tensors": "pt"}
        )
        return found


def at_once(engine: Any, pipe: Any, task: str) -> Override | None:
    """For tasks whose preprocessing is one call of the tokenizer, and whose texts are one row each."""
    return Override(engine, "at_once", AtOnce(pipe, task)) if task in outputs.READS else None
