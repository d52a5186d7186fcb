"""Where texts are cut: at the least of what the model, its tokenizer and the catalog allow."""

from types import SimpleNamespace
from typing import Any
from unittest import TestCase

import torch
import transformers

from inference.catalog.specs import ModelSpec
from inference.engines.artifacts.pipeline_loader import find_max_tokens

UNLIMITED = 1e30  # what tokenizers say that know of no limit
SMALL = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 50,
}  # fmt: skip


def model_of(kind: str, **config: Any) -> Any:
    return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **config)).eval()


def limit_of(model: Any, tokens: float = UNLIMITED, *, max_length: int = 0) -> int:
    spec = ModelSpec(name="m", model="x", max_batch_tokens=9000, max_length=max_length)
    return find_max_tokens(spec, model, SimpleNamespace(model_max_length=tokens))


class MaxTokensTests(TestCase):
    def test_positions_of_the_model_are_the_limit_of_a_tokenizer_without_one(self) -> None:
        self.assertEqual(limit_of(model_of("bert", **SMALL)), 50)

    def test_the_least_limit_counts_and_none_is_no_limit(self) -> None:
        bert = model_of("bert", **SMALL)
        self.assertEqual([limit_of(bert, 20), limit_of(bert, 60), limit_of(bert, 40, max_length=30)], [20, 50, 30])

    def test_roberta_counts_positions_from_behind_the_padding(self) -> None:
        for kind in ("roberta", "camembert", "esm", "longformer", "mpnet"):
            with self.subTest(kind):
                model = model_of(kind, **SMALL, pad_token_id=1)
                tokens = torch.full((1, limit_of(model)), 7)
                with torch.inference_mode():
                    model(input_ids=tokens)
                    with self.assertRaises((IndexError, RuntimeError)):
                        model(input_ids=torch.full((1, limit_of(model) + 1), 7))

    def test_a_model_without_positions_reads_what_fits_a_batch(self) -> None:
        xlnet = model_of("xlnet", vocab_size=40, d_model=16, n_layer=1, n_head=2, d_inner=16)
        self.assertEqual(xlnet.config.max_position_embeddings, -1)
        self.assertEqual([limit_of(xlnet), limit_of(xlnet, 20)], [9000, 20])
