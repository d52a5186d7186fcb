"""A model that generates, and what `generate` answers to each prompt alone.

It is small and has random weights, whose answers differ from prompt to prompt, unless GREEDY_MODEL names the folder of
another. A greedy answer begins as a longer one does: one reference a prompt tells the answers of every length.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import architectures

CATALOG = """
[greedy]
task = "text-generation"
model = "{folder}"
max_batch_size = 8
max_batch_tokens = 1200    # room for less than eight of the longest
max_queued = 100000
time_limit_s = 120
"""
SHORTEST, LONGEST = 8, 128  # tokens of an answer
PROMPTS = 40
WORDS_OF_A_PROMPT = (1, 40)
GIVEN = os.environ.get("GREEDY_MODEL", "")


def prompts() -> list[str]:
    """Of words that the small model knows, and any other too."""
    from inference.engines.runtime import parity  # imports torch, which most of the faults do without

    rng = random.Random("prompts")
    words = " ".join(parity.TEXTS).split()
    return [" ".join(rng.choices(words, k=rng.randint(*WORDS_OF_A_PROMPT))) for _ in range(PROMPTS)]


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """The weights, as long as the block lasts."""
    if GIVEN:
        yield Path(GIVEN)
        return
    with tempfile.TemporaryDirectory() as made:
        size = {"max_position_embeddings": 256, "initializer_range": 1.0}
        for part in (architectures.build("llama", "text-generation", **size), architectures.tokenizer(ends=False)):
            part.save_pretrained(made)
        yield Path(made)


class Reference:
    """The model in this process, asked one prompt at a time, and each of them once."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)  # a second one waits more than it works, beside a busy service
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.tokens = functools.cache(self._tokens)

    def text(self, prompt: str, most: int) -> str:
        """Return the answer of at most so many tokens, as it stands behind the prompt: with the blank between them."""
        before = self.tokenizer(prompt)["input_ids"]
        whole = self._read([*before, *self.tokens(prompt)[:most]])
        return whole[len(self._read(before)) :]

    def _read(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def _tokens(self, prompt: str) -> list[int]:
        given = self.tokenizer(prompt, return_tensors="pt")
        answer = self.model.generate(**given, max_new_tokens=LONGEST, do_sample=False)
        return answer[0, given["input_ids"].shape[1] :].tolist()  # type: ignore[no-any-return]
