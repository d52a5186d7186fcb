"""The conversion of a model of torch to a graph of OpenVINO, which must be installed.

The model is traced, and its weights become int8 if asked for. OpenVINO's own converter reads the trace: the one by way
of ONNX needs more packages, and a deprecated exporter.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import openvino
import torch
from openvino import opset13 as operations
from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder
from torch import nn
from transformers.utils import logging

LARGEST = 127  # largest number in an int8, so that both signs have as many
IN_A_LAYER = re.compile(r"\.\d+\.")  # in the name of a weight in a list of modules
FILE = "model.xml"  # the graph; the weights are in a file beside it


class _Plain(nn.Module):
    """A model that can be traced: it takes tensors by position, and returns one tensor."""

    def __init__(self, model: nn.Module, names: Sequence[str], output: str) -> None:
        super().__init__()
        self.model, self.names, self.output = model, names, output

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.model(**dict(zip(self.names, values, strict=True)))[self.output]
        return answer


def export_graph(model: nn.Module, features: Mapping[str, torch.Tensor], output: str, *, short: bool) -> openvino.Model:
    """Return the graph that computes `output` of inputs named and shaped like `features`.

    If `short`, its weights are int8.
    """
    graph = _trace_model(model, features, output)
    if short:
        _quantize_weights(graph)
    return graph


def save_graph(graph: openvino.Model, folder: Path) -> None:
    """Save a graph. Raises `OSError` if it was not written whole, as OpenVINO itself does not report a full disk."""
    try:
        openvino.save_model(graph, folder / FILE, compress_to_fp16=False)
        read_graph(folder)
    except RuntimeError as error:
        raise OSError(f"{FILE} cannot be written: {error}") from error


def read_graph(folder: Path) -> openvino.Model:
    return openvino.Core().read_model(folder / FILE)


def _trace_model(model: nn.Module, features: Mapping[str, torch.Tensor], output: str) -> openvino.Model:
    plain = _Plain(model, list(features), output).eval()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # errors of tracing show in the answers, which are compared
            trace = torch.jit.trace(plain, tuple(features.values()), check_trace=False)
            decoder = TorchScriptPythonDecoder(trace)  # it must outlive the conversion
            frontend = FrontEndManager().load_by_framework("pytorch")
            graph = frontend.convert(frontend.load(decoder))
    finally:
        logging.set_verbosity(verbosity)
    for parameter, name in zip(graph.get_parameters(), features, strict=True):
        parameter.set_friendly_name(name)
    return graph


def _quantize_weights(graph: openvino.Model) -> None:
    """Turn the weights of products into int8, with a scale for each number that they compute.

    The weights of heads stay as they are: they are few, and what they lose would show in every score.
    """
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


def list_package_versions() -> list[str]:
    """Return the versions of the packages that a graph is made with."""
    import transformers

    return [openvino.__version__, torch.__version__, transformers.__version__]


def list_cpu_features() -> list[str]:
    core = openvino.Core()
    features = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return [core.get_property("CPU", "FULL_DEVICE_NAME"), *sorted(features)]
