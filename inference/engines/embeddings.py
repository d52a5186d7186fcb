"""Sentence embeddings: a text encoder, the mean of its tokens under the mask, and length one.

Pooling as in sentence-transformers (Reimers and Gurevych, 2019), which made these models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from inference.engines import encoders, pipelines, weights
from inference.engines.base import Engine
from inference.engines.tokens import beginning
from inference.errors import InferenceError, InvalidInput

logging.disable_progress_bar()  # thousands of lines in a log file


class SentenceEmbeddings(Engine):
    """A text in, a list of floats of length one out."""

    def load(self, device: str) -> None:
        folder = weights.folder(self.spec)
        self.device = torch.device(device)
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        self.model = AutoModel.from_pretrained(
            folder,
            dtype=self.spec.dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        ).to(self.device)
        self.padded = encoders.install(self.model, self.tokenizer) is None
        saved = weights.config(folder, "sentence_bert_config.json").get("max_seq_length")
        self.max_tokens = pipelines.max_tokens(self.model, self.tokenizer, saved, self.spec.max_length)

    def warm_up(self) -> None:
        self.embed(["warm up"])

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        problems = [None if isinstance(text, str) else _not_a_text(text) for text in inputs]
        embedded = iter(self.embed([text for text in inputs if isinstance(text, str)]).tolist())
        return [problem or next(embedded) for problem in problems]

    def embed(self, texts: list[str]) -> torch.Tensor:
        """One row a text, float32, on the CPU. Texts are cut at `max_tokens`."""
        if not texts:
            return torch.empty(0, 0)
        tokens = self.tokenizer(
            [beginning(self.tokenizer, text, self.max_tokens) for text in texts],
            padding=True, truncation=True, max_length=self.max_tokens, return_tensors="pt",
        ).to(self.device)  # fmt: skip
        with torch.inference_mode():
            states = self.model(**tokens).last_hidden_state.float()
            mask = tokens["attention_mask"].unsqueeze(-1).float()
            means = (states * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
            return functional.normalize(means, dim=1).cpu()


class SentenceSimilarity(SentenceEmbeddings):
    """{"source_sentence", "sentences"} in, the cosine of each sentence to the source out."""

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        problems = [_sentence_problem(value) for value in inputs]
        texts = [
            [value["source_sentence"], *value["sentences"]]
            for value, bad in zip(inputs, problems, strict=True)
            if not bad
        ]
        groups = iter(
            self._embed_all([text for group in texts for text in group]).split([len(group) for group in texts])
        )
        return [problem or _cosines(next(groups)) for problem in problems]

    def _embed_all(self, texts: list[str]) -> torch.Tensor:
        """Near lengths run together, at most `max_batch_size` texts a time: one input may hold many sentences."""
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        size = self.spec.max_batch_size
        parts = [
            self.embed([texts[index] for index in order[start : start + size]]) for start in range(0, len(order), size)
        ]
        if not parts:
            return torch.empty(0, 0)
        return torch.cat(parts)[torch.tensor(order).argsort()]


def _cosines(rows: torch.Tensor) -> list[float]:
    return (rows[1:] @ rows[0]).tolist()


def _not_a_text(value: Any) -> InferenceError:
    return InvalidInput(f"An input must be a text, not {type(value).__name__}.")


def _sentence_problem(value: Any) -> InferenceError | None:
    if not isinstance(value, dict) or not isinstance(value.get("source_sentence"), str):
        return InvalidInput('An input must be {"source_sentence": "a text", "sentences": ["another", …]}.')
    sentences = value.get("sentences")
    if not isinstance(sentences, list) or not sentences or not all(isinstance(text, str) for text in sentences):
        return InvalidInput("sentences must be a list of one or more texts.", field="inputs.sentences")
    return None
