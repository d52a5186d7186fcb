"""The installation of another backend for a model's `forward`, or of torch in bfloat16.

It is used if its answers are those of torch in float32, up to the difference that the catalog allows. If they are not,
or if the backend fails on the way, torch computes the model in float32, and a warning says what to do.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from django.conf import settings

from inference.catalog import tasks
from inference.catalog.specs import TORCH, TRANSFORMERS_ENGINE, ModelSpec
from inference.engines.accelerate.installation import Shortcuts
from inference.engines.artifacts import disk_cache, weights
from inference.engines.backends import agreement, packages
from inference.engines.runtime import parity, precision
from inference.engines.runtime.exception_diagnosis import describe_exception
from inference.engines.runtime.row_groups import BatchingMode
from inference.errors import ModelUnavailable

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput

logger = logging.getLogger(__name__)

HOME = "exported"  # name of the folder in a model's folder
VERSION = 2  # number of the way in which graphs are made and kept here
# Largest difference of a model's scores from those in float32, as a part of the largest score.
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.05, "int8": 0.2}
LEAST_LABELS = 0.9  # share of the labels that must be the same
# Largest difference of answers in a batch from those to the same texts alone, as other sums are rounded.
OF_A_BATCH = {"float32": 1e-4, "bfloat16": 0.02, "int8": 0.02}
Installed = tuple[Shortcuts | None, str]  # the shortcuts, None where torch computes; a note for the page


class BackendUnfit(Exception):
    """The error that the backend does not compute this model; the message has the reason."""


@dataclass(slots=True)
class Substitute:
    """A shortcut with `forward` in place of the model's own, whose weights may be released while it is on."""

    model: Any
    forward: Any
    load: Callable[[], Any]  # loads the same model anew
    needs_weights: bool = True
    has_weights: bool = True

    def turn_on(self) -> None:
        self.model.forward = self.forward
        if not self.needs_weights:
            self.release_weights()

    def release_weights(self) -> None:
        self.needs_weights = self.has_weights = False
        for parameter in self.model.parameters():
            parameter.data = parameter.data.new_empty(0)

    def turn_off(self) -> None:
        if not self.has_weights:
            for parameter, again in zip(self.model.parameters(), self.load().parameters(), strict=True):
                parameter.data = again.data
            self.has_weights = True
        vars(self.model).pop("forward", None)


def require_backend(spec: ModelSpec) -> None:
    """Raise `ModelUnavailable` if the backend is not installed."""
    if problem := packages.find_problem(spec):
        raise ModelUnavailable(problem)


def install_backend(
    spec: ModelSpec, model: PreTrainedModel, answers: parity.Answers, inputs: Sequence[Any]
) -> Installed:
    """Install the backend that the catalog asks for, if its answers are near enough.

    `answers` runs `model`; `inputs` are of several lengths.
    """
    if spec.backend == TORCH:
        return _use_bfloat16_if_accurate(spec, model, answers, inputs) if _is_compared(spec, model) else (None, "")
    shortcuts = Shortcuts(model.config.model_type, parity.BatchingChoice(mode=BatchingMode.PADDED))
    try:
        found = _try_backend(spec, model, spec.precision or "float32", answers, inputs, shortcuts)
    except Exception as error:
        if isinstance(error, BackendUnfit):
            return _report_unfit_backend(spec, str(error))
        logger.warning("model=%s %s raised %s", spec.name, spec.backend, describe_exception(error))
        return _report_unfit_backend(spec, "it raises an exception, which the worker's log has")
    return shortcuts, f"{spec.backend} computes it {found}."


def _report_unfit_backend(spec: ModelSpec, reason: str) -> Installed:
    note = f"{packages.REFUSED} {spec.backend} in {spec.precision or 'float32'}: {reason.rstrip('.')}."
    logger.warning("model=%s %s", spec.name, note)
    return None, note


def _is_compared(spec: ModelSpec, model: PreTrainedModel) -> bool:
    """Return True if torch is to compute the model in bfloat16 by its `precision`, and its answers can be compared.

    They are scores or states then.
    """
    is_ours = spec.engine != TRANSFORMERS_ENGINE or tasks.find_task(spec.task).compiles
    is_quantized = getattr(model.config, "quantization_config", None) is not None  # it has no weights in float32
    return spec.precision == "bfloat16" and is_ours and model.device.type == "cpu" and not is_quantized


def _use_bfloat16_if_accurate(
    spec: ModelSpec, model: PreTrainedModel, answers: parity.Answers, inputs: Sequence[Any]
) -> Installed:
    """Let torch compute the model in bfloat16 if its answers are near enough to those in float32, else in float32."""
    own, whole = (
        [part.data for part in _list_tensors(one)] for one in (model, _load_model(spec, model, dtype="float32"))
    )
    _, output = _record_call(model, answers, inputs[:1])
    labels = "logits" in output
    alone = answers(inputs, BatchingMode.ALONE)
    _replace_data(model, whole)
    found = agreement.compare_answers(alone, answers(inputs, BatchingMode.ALONE), labels=labels)
    try:
        _check_agreement(found, spec.tolerance or TOLERANCES[spec.precision])
    except BackendUnfit as error:
        return _report_unfit_backend(spec, str(error))
    _replace_data(model, own)
    note = f"torch computes it in {spec.precision}: {found}."
    logger.info("model=%s %s", spec.name, note)
    return None, note


def _list_tensors(model: PreTrainedModel) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _replace_data(model: PreTrainedModel, data: Sequence[torch.Tensor]) -> None:
    for part, other in zip(_list_tensors(model), data, strict=True):
        part.data = other


def _try_backend(
    spec: ModelSpec,
    model: PreTrainedModel,
    precision: str,
    answers: parity.Answers,
    inputs: Sequence[Any],
    shortcuts: Shortcuts,
) -> str:
    """Let the backend compute the model, and return a text on the precision and on how near the answers are.

    Raises `BackendUnfit` if the answers differ too much, or the device is no CPU.
    """
    if model.device.type != "cpu":
        raise BackendUnfit(f"that computes on a CPU, and the replica's device is {model.device}")
    expected = answers(inputs, BatchingMode.ALONE)
    forward = _make_forward(spec, model, precision, answers, inputs)
    substitute = Substitute(model, forward, functools.partial(_load_model, spec, model))
    substitute.turn_on()
    try:
        alone = answers(inputs, BatchingMode.ALONE)
        found = agreement.compare_answers(alone, expected, labels=forward.output == "logits")
        _check_agreement(found, spec.tolerance or TOLERANCES[precision])
        if not _has_batch_parity(answers, inputs, alone, precision):
            forward.alone = True
            if not _has_batch_parity(answers, inputs, alone, precision):
                raise BackendUnfit("it answers a batch otherwise than each text alone")
    finally:
        substitute.turn_off()
    if shortcuts.add_if_equal(spec.backend, lambda: substitute, lambda: True):
        shortcuts.unpadded = True
        substitute.release_weights()
    lacking = f", as this processor has no {precision}" if forward.precision != precision else ""
    return f"in {forward.precision}{lacking}: {found}"


def _load_model(spec: ModelSpec, model: PreTrainedModel, **otherwise: Any) -> Any:
    return type(model).from_pretrained(
        model.name_or_path,
        config=model.config,
        **{**precision.make_loading_arguments(spec, "cpu"), **otherwise},
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
    )


def _check_agreement(found: agreement.Agreement, tolerance: float) -> None:
    if found.difference > tolerance:
        raise BackendUnfit(f"{found}, where {tolerance:g} is allowed: a higher tolerance, or another precision, may do")
    if found.share < LEAST_LABELS:
        raise BackendUnfit(f"{found}: another precision may do")


def _has_batch_parity(
    answers: parity.Answers, inputs: Sequence[Any], alone: Sequence[parity.Answer], precision: str
) -> bool:
    return agreement.compare_answers(answers(inputs, BatchingMode.PADDED), alone).difference <= OF_A_BATCH[precision]


def _make_forward(
    spec: ModelSpec, model: PreTrainedModel, precision: str, answers: parity.Answers, inputs: Sequence[Any]
) -> Any:
    from inference.engines.backends import openvino_forward, openvino_graph

    features, output = _record_call(model, answers, inputs[:2])
    name = "logits" if "logits" in output else next(iter(output))

    @functools.cache
    def export_once() -> Any:
        return openvino_graph.export_graph(model, features, name, short=precision == "int8")

    folder = Path(model.name_or_path)
    digest = _digest_folder(
        folder,
        [
            VERSION,
            spec.backend,
            precision,
            name,
            *features,
            *openvino_graph.list_package_versions(),
            *openvino_graph.list_cpu_features(),
        ],
    )
    homes = (folder / HOME, settings.DATA_DIR / HOME)
    found = None
    try:
        found = disk_cache.open_cached_folder(
            homes, digest, lambda place: openvino_graph.save_graph(export_once(), place)
        )
        whole = openvino_graph.read_graph(found.path)
    except OSError as error:
        logger.warning(
            "model=%s is exported again at each start, since the export cannot be stored: %s. Make room in %s, or"
            " let this user write to %s.",
            spec.name,
            describe_exception(error),
            *homes,
        )
        whole = export_once()
    computes = openvino_forward.OpenVINOForward(whole, precision, name, type(output))
    if found:
        weakref.finalize(computes, found.sums.close)
    return computes


def _record_call(
    model: PreTrainedModel, answers: parity.Answers, inputs: Sequence[Any]
) -> tuple[dict[str, torch.Tensor], ModelOutput]:
    """Return the tensors that the model is given for `inputs`, by name, and its output. The last call counts."""
    calls: list[tuple[dict[str, Any], ModelOutput]] = []
    hook = model.register_forward_hook(
        lambda model, arguments, features, output: calls.append((features, output)), with_kwargs=True
    )
    try:
        answers(inputs, BatchingMode.PADDED)
    finally:
        hook.remove()
    features, output = calls[-1]
    tensors = sorted(name for name, value in features.items() if isinstance(value, torch.Tensor))
    return {name: features[name] for name in tensors}, output  # pipelines pass them in any order


def _digest_folder(folder: Path, more: Sequence[object]) -> str:
    """Return a digest of a model's weights and configuration, and of `more`."""
    digest = hashlib.sha256(repr(more).encode())
    for path in [*weights.list_weight_files(folder), folder / "config.json"]:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:32]
