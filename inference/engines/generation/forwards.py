"""Forwards of the model: the prefill of new prompts, and the decode of the last token of all rows."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import Cache, DynamicCache, PreTrainedModel

from inference.engines.generation.kv_cache import KVCache
from inference.engines.generation.rows.row import GeneratedRow

# Kernels that compute attention on a GPU. cuDNN is left out: it plans each new number of rows and columns for longer
# than the step takes, and each step has another number. So 75 ms became 39 (H100, SmolLM2-135M in bfloat16).
KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Forwards:
    """The forwards of one model. Each returns scores as `generate` reads them: [rows, vocabulary], float32."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        taken = inspect.signature(model.forward).parameters
        self._positions = "position_ids" in taken
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in taken else {}
        self._cache = "cache" if "cache" in taken else "past_key_values"  # its name until transformers 5.23

    def prefill_prompts(self, rows: Sequence[GeneratedRow]) -> tuple[torch.Tensor, Cache]:
        """Compute whole prompts side by side. Return the scores of their next tokens, and their cache."""
        lengths = torch.tensor([len(row.tokens) for row in rows])
        longest = int(lengths.max())
        tokens = torch.tensor([[0] * (longest - len(row.tokens)) + row.tokens for row in rows])
        cache = DynamicCache()
        return self._run_forward(tokens, lengths, cache, rows), cache

    def prefill_piece(self, row: GeneratedRow, size: int) -> torch.Tensor:
        """Compute the next `size` tokens of a long prompt, beside what is in the row's own cache."""
        row.cache = row.cache or DynamicCache()
        tokens = torch.tensor([row.tokens[row.own_cache_length : row.own_cache_length + size]])
        return self._run_forward(tokens, torch.tensor([row.own_cache_length + tokens.shape[1]]), row.cache, [row])

    def decode_rows(self, rows: Sequence[GeneratedRow], cells: KVCache, first: int) -> torch.Tensor:
        """Compute the last tokens of rows that lie beside each other in `cells`, from the place `first` on."""
        tokens = torch.tensor([row.tokens[-1:] for row in rows])
        lengths = torch.tensor([len(row.tokens) for row in rows])
        return self._run_forward(tokens, lengths, cells.set_row_range(first, first + len(rows)))

    def _run_forward(
        self, tokens: torch.Tensor, lengths: torch.Tensor, cache: Cache, prompts: Sequence[GeneratedRow] = ()
    ) -> torch.Tensor:
        """Compute `tokens`, which come behind those in `cache`.

        `lengths` has each row's number of tokens, those in the cache and the new ones. All rows end in the last column.
        `prompts` are the rows whose prompts the tokens are of: one that is scored reads the scores of all its tokens.
        """
        scored = {
            place: row.prompt_logprobs
            for place, row in enumerate(prompts)
            if row.prompt_logprobs and row.needs_prompt_logprobs
        }
        columns = int(cache.get_seq_length()) + tokens.shape[1]
        places = torch.arange(columns) - (columns - lengths)[:, None]
        given: dict[str, Any] = {"attention_mask": (places >= 0).long()}
        if self._positions:
            given["position_ids"] = places[:, -tokens.shape[1] :].clamp(min=0)
        given = {name: value.to(self.model.device) for name, value in given.items()}
        with sdpa_kernel(KERNELS):
            output = self.model(
                input_ids=tokens.to(self.model.device),
                use_cache=True,
                return_dict=True,
                **({} if scored else self._last_only),
                **{self._cache: cache},
                **given,
            )
        for place, prompt in scored.items():
            first = max(0, int(places[place, -tokens.shape[1]]))
            prompt.read_scores(first, output.logits[place, first - int(lengths[place]) :])
        scores: torch.Tensor = output.logits[:, -1].float()
        return scores
