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

from tests import architectures, tiny_models

CATALOG = """
[greedy]
task = "text-generation"
model = "{folder}"
max_batch_size = 8
max_batch_tokens = 1200    # room for less than eight of the longest
max_queued = 100000
time_limit_s = 600
"""
SHORTEST, LONGEST = 8, 128  # tokens of an answer
PROMPTS = 40
WORDS_OF_A_PROMPT = (1, 20)
GIVEN = os.environ.get("GREEDY_MODEL", "")
GRAMMAR = {"type": "regex", "value": "[ a-z0-9]*"}


def prompts() -> list[str]:
    """Return prompts of the words of the texts that compare answers."""
    from inference.engines.runtime import parity  # imports torch, which most of the faults do without

    rng = random.Random("prompts")
    words = " ".join(parity.TEXTS).split()
    return [" ".join(rng.choices(words, k=rng.randint(*WORDS_OF_A_PROMPT))) for _ in range(PROMPTS)]


def find_grammar(prompt: str) -> dict[str, Any]:
    """Return the parameters that bind the answers of half of the prompts, and nothing for the others."""
    return {"grammar": GRAMMAR} if len(prompt) % 2 else {}


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """The weights, as long as the block lasts."""
    if GIVEN:
        yield Path(GIVEN)
        return
    with tempfile.TemporaryDirectory() as made:
        tokenizer = tiny_models.byte_tokenizer()
        tokens = {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
        size = {"max_position_embeddings": 512, "initializer_range": 1.0, "pad_token_id": None}
        for part in (architectures.build("llama", "text-generation", **tokens, **size), tokenizer):
            part.save_pretrained(made)
        yield Path(made)


class Reference:
    """The model in this process, asked one prompt at a time, and each of them once."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from inference.engines.generation.processors.grammars import Grammars

        torch.set_num_threads(1)  # a second one waits more than it works, beside a busy service
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        ends = [self.model.generation_config.eos_token_id]
        self.grammars = Grammars(self.tokenizer, vocabulary=self.model.config.vocab_size, ends=ends)
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
        length = given["input_ids"].shape[1]
        bound = [self.grammars.make_processor(GRAMMAR, prompt=length)] if find_grammar(prompt) else []
        answer = self.model.generate(**given, max_new_tokens=LONGEST, do_sample=False, logits_processor=bound)
        return answer[0, length:].tolist()  # type: ignore[no-any-return]
