"""Engines over small decoders with random weights, which were never saved: a token a byte.

    made = engine("bloom")          # made.stepper, made.predict

The weights are wide, so that scores lie apart, and the same at every call.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any
from unittest.mock import patch

from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.artifacts import pipeline_loader, weights
from inference.engines.stepper import OPEN, Progress, Stepper
from tests import tiny_models

POSITIONS = 256
WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**WIDTH, "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": POSITIONS}
SETTINGS: dict[str, dict[str, Any]] = {
    "Bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS},
    "Gemma2": {**GROUPED, "head_dim": 16, "sliding_window": 8},
    "Llama": GROUPED,
    "Mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
    "Mistral": {**GROUPED, "sliding_window": 8},
    "OPT": {**WIDTH, "ffn_dim": 48, "max_position_embeddings": POSITIONS, "word_embed_proj_dim": 32},
    "Qwen2": GROUPED,
}


def model(kind: str, **settings: Any) -> Any:
    import torch
    import transformers

    tokenizer = tiny_models.byte_tokenizer()
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(tokenizer),
        initializer_range=0.5,
        init_std=0.5,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
        **{**SETTINGS[kind], **settings},
    )
    with torch.random.fork_rng():
        torch.manual_seed(tiny_models.SEED)
        return transformers.AutoModelForCausalLM.from_config(config).eval()


def over(made: Any, **spec: Any) -> Any:
    """An engine over a model."""
    import transformers

    tokenizer = tiny_models.byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    ready = transformers.pipeline("text-generation", model=made, tokenizer=tokenizer, device="cpu")
    with patch.object(weights, "fetch_folder"), patch.object(pipeline_loader, "pipeline", return_value=ready):
        return loading.load_engine(ModelSpec(name="m", task="text-generation", model="m", **spec), "cpu")


@functools.cache
def engine(kind: str) -> Any:
    return over(model(kind))


class ProgressCollector:
    """The progress of a stepper's rows, by key."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self.texts: dict[Hashable, str] = {}
        self.tokens: dict[Hashable, int] = {}
        self.answers: dict[Hashable, Any] = {}

    def step(self) -> list[Progress]:
        progress = self.stepper.step()
        for row_progress in progress:
            self.texts[row_progress.key] = self.texts.get(row_progress.key, "") + row_progress.text
            self.tokens[row_progress.key] = self.tokens.get(row_progress.key, 0) + row_progress.tokens
            if row_progress.answer is not OPEN:
                self.answers[row_progress.key] = row_progress.answer
        return progress

    def all(self, limit: int = 2000) -> ProgressCollector:
        """Until nobody is in."""
        for _ in range(limit):
            if not len(self.stepper):
                return self
            self.step()
        raise AssertionError(f"{len(self.stepper)} rows have not ended after {limit} steps")
