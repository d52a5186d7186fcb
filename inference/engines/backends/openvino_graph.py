"""From a model of torch to a graph of OpenVINO: traced, and its weights in int8 if asked for. Needs OpenVINO.

OpenVINO's own converter reads the trace: the one by way of ONNX needs more packages, and a deprecated exporter.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import torch
from openvino import opset13 as operations
from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder
from torch import nn
from transformers.utils import logging

LARGEST = 127  # of an int8, so that both signs have as many
IN_A_LAYER = re.compile(r"\.\d+\.")  # the name of a weight in a list of modules
FILE = "model.xml"  # and beside it the weights


class _Plain(nn.Module):
    """With tensors by place in, and one tensor out: what can be traced."""

    def __init__(self, model: nn.Module, names: Sequence[str], output: str) -> None:
        super().__init__()
        self.model, self.names, self.output = model, names, output

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.model(**dict(zip(self.names, values, strict=True)))[self.output]
        return answer


def exported(model: nn.Module, features: Mapping[str, torch.Tensor], output: str, *, short: bool) -> Any:
    """The graph that computes `output` of inputs named and shaped like `features`; `short`, with weights of int8."""
    graph = _traced(model, features, output)
    if short:
        _shorten(graph)
    return graph


def save(graph: Any, folder: Path) -> None:
    """Raises `OSError` where it was not written whole: OpenVINO itself says nothing of a full disk."""
    try:
        openvino.save_model(graph, folder / FILE, compress_to_fp16=False)
        read(folder)
    except RuntimeError as error:
        raise OSError(f"{FILE} cannot be written: {error}") from error


def read(folder: Path) -> Any:
    return openvino.Core().read_model(folder / FILE)


def _traced(model: nn.Module, features: Mapping[str, torch.Tensor], output: str) -> Any:
    plain = _Plain(model, list(features), output).eval()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of tracing: what it gets wrong shows in the answers, which are compared
            trace = torch.jit.trace(plain, tuple(features.values()), check_trace=False)
            decoder = TorchScriptPythonDecoder(trace)  # which must outlive the conversion
            frontend = FrontEndManager().load_by_framework("pytorch")
            graph = frontend.convert(frontend.load(decoder))
    finally:
        logging.set_verbosity(verbosity)
    for parameter, name in zip(graph.get_parameters(), features, strict=True):
        parameter.set_friendly_name(name)
    return graph


def _shorten(graph: Any) -> None:
    """Weights of products as int8, with a scale for each of what they compute. Those of heads are few, and what they
    lose shows in every score."""
    for product in graph.get_ops():
        if product.get_type_name() != "MatMul":
            continue
        weights = product.input(1).get_source_output().get_node()
        if (
            weights.get_type_name() != "Constant"
            or weights.data.ndim != 2
            or not IN_A_LAYER.search(weights.get_friendly_name())
        ):
            continue
        values = weights.data.astype(np.float32)
        axis = 1 if product.get_attributes()["transpose_b"] else 0
        scale = np.maximum(np.abs(values).max(axis, keepdims=True), np.finfo(np.float32).tiny) / LARGEST
        short = operations.constant(np.round(values / scale).astype(np.int8))
        widened = operations.multiply(operations.convert(short, "f32"), operations.constant(scale))
        product.input(1).replace_source_output(widened.output(0))
    graph.validate_nodes_and_infer_types()


def versions() -> list[str]:
    """Of what a graph is made with."""
    import transformers

    return [openvino.__version__, torch.__version__, transformers.__version__]


def cpu() -> list[str]:
    core = openvino.Core()
    features = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return [core.get_property("CPU", "FULL_DEVICE_NAME"), *sorted(features)]
