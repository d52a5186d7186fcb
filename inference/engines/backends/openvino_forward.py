"""The `forward` of a model, computed by OpenVINO, which must be installed.

One more call costs next to nothing here, and padding costs what text costs. So a batch is run as several calls, each
for texts of near lengths.
"""

import platform
from collections.abc import Sequence
from typing import Any

import openvino
import torch
from transformers.utils import ModelOutput

CALL_COST = 16  # tokens of padding that cost as much as one more call
CACHE = 100  # primitives kept for shapes seen before, several a shape; the default is 5,000, which take a GiB
GROUP = 64  # values that share a scale, where they are multiplied with weights of int8
HINTS = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}


class OpenVINOForward:
    """The `forward` of one model, for one thread.

    Its answer has `output` alone, in the kind of output that the model has.
    """

    def __init__(self, graph: openvino.Model, precision: str, output: str, kind: type[ModelOutput]) -> None:
        settings: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": HINTS[precision],
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP if precision == "int8" else 0,
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,  # replicas have cores of their own already
        }
        if platform.machine() == "x86_64":  # elsewhere OpenVINO keeps none, as primitives of ARM's library may mix
            settings["CPU_RUNTIME_CACHE_CAPACITY"] = CACHE
        compiled = openvino.Core().compile_model(graph, "CPU", settings)
        has_precision = compiled.get_property("INFERENCE_PRECISION_HINT").to_string() == HINTS[precision]
        self.precision = precision if has_precision else "float32"  # used by a processor that lacks the other
        self.names = [parameter.get_friendly_name() for parameter in graph.get_parameters()]
        self.request = compiled.create_infer_request()
        self.output, self.kind = output, kind
        self.alone = False  # True if each row runs by itself, as neighbours change an answer

    def __call__(self, **features: torch.Tensor) -> ModelOutput:
        rows = {name: features[name] for name in self.names}
        mask = features.get("attention_mask")
        lengths = mask.sum(1).tolist() if mask is not None and "input_ids" in rows else None
        return self.kind(**{self.output: self._run_batch(rows, lengths)})

    def _run_batch(self, rows: dict[str, torch.Tensor], lengths: list[int] | None) -> torch.Tensor:
        count = len(next(iter(rows.values())))
        if count == 1 or (lengths is None and not self.alone):
            return self._run_rows(rows)
        groups = [[row] for row in range(count)] if self.alone or lengths is None else group_near_lengths(lengths)
        if len(groups) == 1:
            return self._run_rows(rows)
        return _join_rows(groups, [self._run_rows(_select_rows(rows, group, lengths)) for group in groups], rows)

    def _run_rows(self, rows: dict[str, torch.Tensor]) -> torch.Tensor:
        answer = self.request.infer([values.numpy() for values in rows.values()], share_inputs=True)
        return torch.from_numpy(answer[0])


def group_near_lengths(lengths: Sequence[int]) -> list[list[int]]:
    """Return groups of texts, by their places, whose padding costs less than one more call."""
    groups: list[list[int]] = []
    padding, longest = 0, 0
    for place in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        padding += longest - lengths[place]
        if not groups or padding > CALL_COST:
            groups.append([])
            padding, longest = 0, lengths[place]
        groups[-1].append(place)
    return groups


def _select_rows(
    rows: dict[str, torch.Tensor], places: list[int], lengths: list[int] | None
) -> dict[str, torch.Tensor]:
    longest = None if lengths is None else max(lengths[place] for place in places)
    return {name: values[places] if longest is None else values[places, :longest] for name, values in rows.items()}


def _join_rows(groups: list[list[int]], parts: list[torch.Tensor], rows: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return one tensor with a row for each of `rows`, in their order; states of tokens have zeros for padding."""
    shape = [sum(map(len, groups)), *parts[0].shape[1:]]
    if parts[0].dim() > 2 and "input_ids" in rows:
        shape[1] = rows["input_ids"].shape[1]
    whole = parts[0].new_zeros(shape)
    for group, part in zip(groups, parts, strict=True):
        if part.dim() > 2:
            whole[group, : part.shape[1]] = part
        else:
            whole[group] = part
    return whole
