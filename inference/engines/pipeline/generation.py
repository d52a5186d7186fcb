"""Generating text in batches: what must hold so that a padded neighbour changes nothing."""

from __future__ import annotations

from typing import Any

from inference.catalog.lengths import NEW_TOKENS
from inference.engines.pipeline.loader import max_positions

# What shows whether neighbours change an answer: the scores of a few steps.
TRIAL = {
    "max_new_tokens": 3, "do_sample": False, "num_beams": 1, "return_dict_in_generate": True, "output_logits": True,
}  # fmt: skip


def with_new_tokens(model: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """`parameters` with a number of new tokens, unless the request or the model asks for a total length."""
    own = model.generation_config
    if parameters.keys() & {"max_new_tokens", "max_length"} or (own.max_length and not own.max_new_tokens):
        return parameters
    new_tokens = own.max_new_tokens or min(NEW_TOKENS, max_positions(model) // 2)
    return {"max_new_tokens": new_tokens, **parameters}


def sees_padding(pipe: Any, parameters: dict[str, Any]) -> bool:
    """Whether a prompt's answer would depend on how far it is padded: only prompts of one length may then run together.

    A total length counts the padding; a penalty on repetition takes padding for text, and hurts where the padding token
    is the one that ends a text.
    """
    if "max_new_tokens" not in parameters or parameters.get("min_length"):
        return True
    ends = pipe.model.generation_config.eos_token_id
    if pipe.tokenizer.pad_token_id not in (ends if isinstance(ends, list) else [ends]):
        return False
    active = {**pipe.model.generation_config.to_diff_dict(), **parameters}
    return bool(active.get("repetition_penalty", 1.0) != 1.0 or active.get("no_repeat_ngram_size", 0) > 0)
