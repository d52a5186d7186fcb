"""The safe loading of a transformers pipeline, and its preparation for batches."""

from collections.abc import Callable
from typing import Any

from django.utils.module_loading import import_string
from torch import nn
from transformers import Pipeline, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, pipeline
from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES
from transformers.pipelines import check_task
from transformers.utils import logging

from inference.catalog.specs import ModelSpec
from inference.engines.artifacts import checkpoint_checks, weights
from inference.engines.runtime import precision
from inference.engines.runtime.exception_diagnosis import describe_exception
from inference.errors import ModelUnavailable

logging.disable_progress_bar()  # it would be thousands of lines in a log file

NO_LIMIT = 1_000_000  # tokens, or more; tokenizers without a limit have 1e30
NO_TOKEN = -1  # the id of no token, by which transformers' own configurations mark an absent token


def load_pipeline(spec: ModelSpec, task: str, device: str) -> tuple[Any, frozenset[str]]:
    """Make the pipeline of `spec` on `device` as transformers does, with nothing changed but what the catalog asks for.

    Return the pipeline, and the names of weights that its files lack. Raises `ModelUnavailable` if it cannot be loaded.
    """
    folder = weights.fetch_folder(spec)
    placed = precision.make_loading_arguments(spec, device)
    # `from_pretrained` alone is given these: `pipeline` would ask a model that a map has placed for its device, and has
    # a pair here.
    own: dict[str, Any] = {key: placed.pop(key) for key in ("quantization_config", "device_map") if key in placed}
    missing: set[str] = set()
    try:
        pipe = pipeline(
            task,
            model=str(folder),
            device=device,
            **placed,
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True, "output_loading_info": True, **own},
            pipeline_class=_make_reporting_class(task, missing.update, is_placed="device_map" in own),
        )
    except ModelUnavailable:
        raise
    except Exception as error:
        raise ModelUnavailable(f"{spec.model} could not be loaded for {task}: {describe_exception(error)}") from error
    precision.configure_tf32(spec, pipe.model)
    tokenizer = pipe.tokenizer
    if tokenizer is not None:
        if len(tokenizer) <= len(tokenizer.all_special_tokens):
            raise ModelUnavailable(f"{spec.model} has no tokenizer: save it with tokenizer.save_pretrained(folder).")
        if spec.max_length:
            tokenizer.model_max_length = min(tokenizer.model_max_length, spec.max_length)
    return pipe, frozenset(missing)


def _make_reporting_class(task: str, add_missing: Callable[[frozenset[str]], None], *, is_placed: bool) -> type:
    """Return a subclass of the task's own pipeline that takes a model together with its loading report.

    `from_pretrained` returns these two as a pair. `add_missing` is called with the names of the weights that the
    model's files lack. A model that is placed already stays where it is.
    """
    kind = check_task(task)[1]["impl"]
    kind = import_string(kind) if isinstance(kind, str) else kind

    class Reporting(kind):  # type: ignore[valid-type, misc]
        def __init__(self, model: tuple[PreTrainedModel, dict[str, Any]], *, device: Any, **parts: Any) -> None:
            loaded, report = model
            if (name := type(loaded).__name__) in MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES.values():
                raise ModelUnavailable(
                    f"{name} makes spectrograms, and transformers would fetch the model that makes sound of them from"
                    " the hub, in no revision of yours. Use a model that makes sound, such as VITS."
                )
            add_missing(checkpoint_checks.find_missing_weights(loaded, report))
            if is_placed:
                device = None if getattr(loaded, "hf_device_map", None) else loaded.device
            super().__init__(model=loaded, device=device, **parts)

    return Reporting


def set_up_padding(spec: ModelSpec, pipe: Pipeline, *, padding_side: str, scores_texts: bool) -> None:
    """Give the tokenizer a padding token and a limit to cut at: batches need both, and many checkpoints lack one.

    Nothing that a head reads of a single text is changed. `scores_texts` is True if a text has one answer, for which a
    decoder reads one token.
    """
    tokenizer, config = pipe.tokenizer, pipe.model.config
    tokenizer.padding_side = padding_side
    if tokenizer.pad_token is None:
        tokenizer.pad_token = _choose_padding_token(tokenizer, config)
    parts = [part for part in (config, config.get_text_config()) if hasattr(part, "pad_token_id")]
    if scores_texts and parts and parts[-1].pad_token_id is None:
        # Without a padding token a decoder's head scores the last token of a text, and refuses batches. With the id of
        # no token it scores the same token, and takes batches. Padding on the left leaves that token where it is.
        tokenizer.padding_side = "left"
        for part in parts:
            part.pad_token_id = NO_TOKEN
    tokenizer.model_max_length = find_max_tokens(spec, pipe.model, tokenizer)


def _choose_padding_token(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> str | None:
    """Return the token that the model takes for padding, if it is a special one; else the end or unknown token."""
    known = tokenizer.added_tokens_decoder.get(getattr(config.get_text_config(), "pad_token_id", None))
    if known is not None and known.special:
        return str(known)
    other: str | None = tokenizer.eos_token or tokenizer.unk_token
    return other


def find_max_tokens(spec: ModelSpec, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the tokens at which a text is cut: the least limit of model, tokenizer and catalog.

    A limit that is not positive is none. Without any limit it is `max_batch_tokens`.
    """
    limits = (find_max_positions(model), tokenizer.model_max_length, spec.max_length)
    limit = min(limit for limit in limits if limit and limit > 0)
    return limit if limit < NO_LIMIT else spec.max_batch_tokens


def find_max_positions(model: nn.Module) -> int:
    """Return how many tokens the model can tell apart by position.

    It is `NO_LIMIT` for a model without such a limit, such as XLNet, whose configuration has -1.
    """
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
