"""The refusal of a checkpoint that lacks weights of its task's model, or labels that its table needs.

transformers makes weights that are missing up at random, at each load.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

import torch

from inference.catalog import tasks
from inference.catalog.specs import HARMLESS_LABELS, ModelSpec
from inference.engines.artifacts import weights
from inference.engines.runtime.exception_diagnosis import is_device_failure, is_out_of_memory
from inference.errors import ModelUnavailable
from inference.values.error_phrases import suggest_name

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput

MOST_NAMED = 4


def find_missing_weights(model: PreTrainedModel, report: dict[str, Any]) -> frozenset[str]:
    """Return the names of the model's parameters that its files do not have.

    `report` is that of `from_pretrained(output_loading_info=True)`. Tied weights are no parameters of their own, and
    buffers are computed: neither is made up.
    """
    return frozenset(report["missing_keys"]) & {name for name, _ in model.named_parameters()}


def refuse_random_answers(
    spec: ModelSpec,
    model: PreTrainedModel,
    missing: Collection[str],
    call: Callable[[], Any] | None,
    *,
    first_only: bool,
) -> None:
    """Raise `ModelUnavailable` if answers depend on `missing` weights.

    `call` has the model answer an example; without it each missing weight counts. `first_only` is True if the first of
    the model's outputs alone makes the answer, as the states of a text do.
    """
    if not missing or (call and not _are_read(model, missing, call, first_only=first_only)):
        return
    named = sorted(missing)
    shown = ", ".join(named[:MOST_NAMED]) + (f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else "")
    task = tasks.find_task(spec.task)
    raise ModelUnavailable(
        f"its files lack {shown}, without which {type(model).__name__} answers at random. Use a checkpoint that was"
        f" trained{f' for {task.name}' if task.name else ''}. If yours was, it has lost them when it was saved: save it"
        f" again, with {weights.make_conversion_snippet(spec, 'checkpoint')}."
    )


def require_one_label(spec: ModelSpec, model: PreTrainedModel) -> None:
    """Raise `ModelUnavailable` for a model that cannot rank, as it does not have exactly one score."""
    if (count := model.config.num_labels) != 1:
        raise ModelUnavailable(
            f"{spec.model} has {count} labels, and a model that ranks texts has one. Use a cross-encoder, or"
            f' task = "{tasks.find_task(spec.task).pipeline}" for the scores of its labels.'
        )


def check_harmless_labels_option(spec: ModelSpec, model: PreTrainedModel) -> None:
    """Raise `ModelUnavailable` if a model cannot tell harmful texts by its other labels, as its options say it does."""
    if HARMLESS_LABELS not in spec.options:
        return
    labels, harmless = list(model.config.id2label.values()), spec.options[HARMLESS_LABELS]
    if unknown := next((label for label in harmless if label not in labels), None):
        hint = suggest_name(unknown, labels)
        raise ModelUnavailable(f"options.{HARMLESS_LABELS} has {unknown!r}, which is none of its labels; {hint}")
    if set(labels) <= set(harmless):
        raise ModelUnavailable(f"options.{HARMLESS_LABELS} has all of its labels, so that no text is harmful.")
    most = spec.parameters["top_k"].max if "top_k" in spec.parameters else None
    if most is not None and most < len(labels):
        raise ModelUnavailable(
            f"parameters.top_k allows {most} of its {len(labels)} labels: {HARMLESS_LABELS} needs all."
        )


def _are_read(model: PreTrainedModel, names: Collection[str], call: Callable[[], Any], *, first_only: bool) -> bool:
    """Return True if an answer depends on these parameters, or if that cannot be found out.

    The parameters are NaN during a call: then numbers that are computed from them are NaN, too.
    """
    found: list[bool] = []

    def look(module: nn.Module, arguments: tuple[Any, ...], output: ModelOutput) -> None:
        found.append(any(bool(part.isnan().any()) for part in _list_float_tensors(output[0] if first_only else output)))

    parameters = [parameter for name, parameter in model.named_parameters() if name in names]
    kept = [parameter.data for parameter in parameters]
    hook = model.register_forward_hook(look)
    try:
        for parameter in parameters:
            parameter.data = torch.full_like(parameter.data, torch.nan)
        call()
    except Exception as error:
        if is_device_failure(error) or is_out_of_memory(error):
            raise
        return True
    finally:
        hook.remove()
        for parameter, data in zip(parameters, kept, strict=True):
            parameter.data = data
    return any(found) or not found


def _list_float_tensors(output: object) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _list_float_tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _list_float_tensors(value)
