"""Loads a transformers pipeline safely, and makes its tokenizer fit for batches."""

from typing import Any

from torch import nn
from transformers import pipeline
from transformers.utils import logging

from inference.catalog.specs import ModelSpec
from inference.engines import placement, weights
from inference.engines.faults import describe
from inference.errors import ModelUnavailable

logging.disable_progress_bar()  # thousands of lines in a log file

NO_LIMIT = 1_000_000  # tokens; tokenizers that know of no limit say 1e30


def load(spec: ModelSpec, task: str, device: str) -> Any:
    """The pipeline of `spec` on `device`. Raises `ModelUnavailable`."""
    folder = weights.folder(spec)
    placed = placement.arguments(spec, device)
    quantized = {key: placed.pop(key) for key in ("quantization_config",) if key in placed}
    try:
        pipe = pipeline(
            task,
            model=str(folder),
            **({} if "device_map" in placed else {"device": device}),
            **placed,
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True, **quantized},
        )
    except Exception as error:
        raise ModelUnavailable(f"{spec.model} could not be loaded for {task}: {describe(error)}") from error
    placement.compute_as_asked(spec, pipe.model)
    if pipe.tokenizer is not None:
        _fit_tokenizer(spec, pipe)
    return pipe


def max_tokens(spec: ModelSpec, model: nn.Module, tokenizer: Any, *more: int | None) -> int:
    """Where a text is cut: the least limit of model, tokenizer, catalog and `more`; what is not positive is none."""
    limits = (max_positions(model), tokenizer.model_max_length, spec.max_length, *more)
    limit = min(limit for limit in limits if limit and limit > 0)
    return limit if limit < NO_LIMIT else spec.max_batch_tokens


def max_positions(model: nn.Module) -> int:
    """Tokens that the model can tell apart by position; `NO_LIMIT` when it has none, as XLNet, which says -1."""
    config = model.config.get_text_config()
    positions: int | None = getattr(config, "max_position_embeddings", None) or getattr(config, "max_seq_len", None)
    if not positions or positions < 0:
        return NO_LIMIT
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return (
                positions - int(module.padding_idx) - 1
            )  # RoBERTa and its kin count positions from behind the padding
    return positions


def _fit_tokenizer(spec: ModelSpec, pipe: Any) -> None:
    """Batches need a padding token, and a limit to cut at: many checkpoints lack one of them."""
    tokenizer = pipe.tokenizer
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise ModelUnavailable(f"{spec.model} has no tokenizer: save it with tokenizer.save_pretrained(folder).")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    for config in (pipe.model.config, pipe.model.config.get_text_config()):
        if getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = tokenizer.pad_token_id
    tokenizer.model_max_length = max_tokens(spec, pipe.model, tokenizer)
