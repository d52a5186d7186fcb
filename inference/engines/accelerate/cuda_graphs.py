"""A text encoder as CUDA graphs: a short batch then costs one launch, where its kernels take hundreds.

A graph computes one shape, so batches are padded to the next of few sizes and lengths. Batches that are larger than all
of them run without padding. So do batches that this GPU computes for longer than it takes to launch them: there padding
costs time. All graphs are captured as the model is loaded, the largest first, and share the memory of what is between
input and answer. Heads run after the graphs: the head of fill-mask would keep scores of the whole vocabulary for each
graph.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from inference.engines.accelerate import unpadded_encoder
from inference.engines.accelerate.shortcut import Override
from inference.engines.artifacts import pipeline_loader

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # texts
LENGTHS = (16, 32, 64, 128, 256)  # tokens
MOST_TOKENS = 8192  # tokens of one graph: more keep an H100 busy, whatever the model
CALLS = 3  # calls that are measured, of which the fastest counts
TRIES = 2  # measurements before a shape takes too long: another process may have had the GPU
LONGER = 1.2  # times as long as the shortest call: then the GPU is busy, and not with launches alone


class Graph(NamedTuple):
    """A graph with the tensors that a replay reads and writes. The next replay writes over them."""

    graph: Any
    inputs: dict[str, torch.Tensor]
    output: Any


@functools.cache
def _get_stream() -> Any:
    """Return the stream of all captures of this process: CUDA's libraries keep memory for each stream, for good."""
    return torch.cuda.Stream()


class EncoderGraphs:
    """The `forward` of an encoder by graphs.

    `padding` has by the name of each input the number that it holds where there is no text.
    """

    def __init__(self, encoder: nn.Module, padding: dict[str, int]) -> None:
        self.plain = encoder.forward
        self.padding = padding
        self.pool, self.stream = torch.cuda.graph_pool_handle(), _get_stream()
        self.graphs: dict[tuple[int, int], Graph] = {}

    def capture_graph(self, *arguments: Any, **options: Any) -> Any:
        """Compute in the place of `forward`, and keep the inputs, of shape (texts, tokens), and a graph for them.

        Raises `ValueError` if the inputs are others than those of the tokenizer.
        """
        inputs = self._find_inputs(*arguments, **options)
        if inputs is None:
            raise ValueError("its layers are given other inputs than its tokenizer makes")
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            answer = self.plain(*arguments, **options)  # libraries set themselves up here, as a capture forbids that
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                output = self.plain(*arguments, **options)
        current.wait_stream(self.stream)
        texts, tokens = inputs["input_ids"].shape
        self.graphs[texts, tokens] = Graph(graph, inputs, output)
        return answer

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Compute by the graph of the shape, or by that of the next larger one.

        No graph is used if the batch is larger than all of them, or if the call asks for more than a graph computes.
        """
        inputs = self._find_inputs(*arguments, **options)
        graph = self.graphs.get(_round_up_shape(*inputs["input_ids"].shape)) if inputs else None
        return self._replay_graph(graph, inputs) if graph and inputs else self.plain(*arguments, **options)

    def _find_inputs(
        self, input_ids: torch.Tensor | None = None, *rest: Any, return_dict: bool | None = True, **options: Any
    ) -> dict[str, torch.Tensor] | None:
        """Return the inputs of a call that has those that graphs read and no others; None for another call."""
        given = {"input_ids": input_ids, **options}
        given = {name: value for name, value in given.items() if value is not None and value is not False}
        return given if return_dict and not rest and given.keys() == self.padding.keys() else None

    def _replay_graph(self, graph: Graph, inputs: dict[str, torch.Tensor]) -> Any:
        texts, longest = inputs["input_ids"].shape
        for name, own in inputs.items():
            graph.inputs[name].fill_(self.padding[name])[:texts, :longest].copy_(own)
        graph.graph.replay()
        return type(graph.output)(
            **{
                name: (part[:texts, :longest] if part.dim() == 3 else part[:texts]).clone()
                for name, part in graph.output.items()
            }
        )


def _round_up_shape(texts: int, tokens: int) -> tuple[int, int]:
    """Return the shape of the graph for such a batch, with 0 for a size or length beyond all graphs."""
    size = next((size for size in SIZES if size >= texts), 0)
    length = next((length for length in LENGTHS if length >= tokens), 0)
    return size, length


def make_graphs(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, unpadded: Override | None = None
) -> Override | None:
    """Capture graphs of a model's encoder, and return the shortcut that uses them.

    Return None for a model that is on no GPU, or whose layers are not known. Graphs compute padding: so `unpadded`, by
    which larger batches are computed without it, is off during the capture.
    """
    if not unpadded_encoder.is_on_gpu(model) or unpadded_encoder.find_layers(model) is None:
        return None
    encoder, most = model.base_model, min(tokenizer.model_max_length, pipeline_loader.find_max_positions(model))
    shapes = [(size, length) for size in SIZES for length in LENGTHS if length <= most and size * length <= MOST_TOKENS]
    if not shapes:
        return None
    pad = max(model.config.pad_token_id or 0, 0)
    made = EncoderGraphs(encoder, {name: pad if name == "input_ids" else 0 for name in tokenizer.model_input_names})

    def call(shape: tuple[int, int]) -> None:
        inputs = {name: torch.zeros(shape, dtype=torch.long, device=model.device) for name in made.padding}
        inputs["attention_mask"][:, 0] = 1  # the rest is padding: without any, transformers uses no mask
        model(**inputs)  # the whole model, as its hooks decide whether products are in TF32

    capturing = Override(encoder, "forward", made.capture_graph)
    if unpadded:
        unpadded.turn_off()
    try:
        with torch.no_grad():
            tokens = find_launch_bound_tokens(lambda shape: measure_fastest_s(lambda: call(shape)), shapes)
            logger.info("CUDA graphs of %s compute up to %d tokens", model.config.model_type, tokens)
            capturing.turn_on()
            for shape in sorted(shapes, key=math.prod, reverse=True):
                if math.prod(shape) <= tokens:
                    call(shape)
    finally:
        capturing.turn_off()
        if unpadded:
            unpadded.turn_on()
    return Override(encoder, "forward", made)


def find_launch_bound_tokens(seconds_of: Callable[[tuple[int, int]], float], shapes: Sequence[tuple[int, int]]) -> int:
    """Return how many tokens a call may have and still take about as long as the smallest call.

    Up to so many the GPU waits for its launches.
    """
    first, *others = sorted(shapes, key=lambda shape: (math.prod(shape), shape))
    shortest_s, most = seconds_of(first), math.prod(first)
    for tokens in sorted({math.prod(shape) for shape in others} - {most}):
        shape = next(shape for shape in others if math.prod(shape) == tokens)
        if all(seconds_of(shape) > LONGER * shortest_s for _ in range(TRIES)):
            break
        most = tokens
    return most


def measure_fastest_s(call: Callable[[], object]) -> float:
    """Measure the seconds of the fastest of a few calls, until the GPU is done."""
    took = []
    for _ in range(1 + CALLS):  # the first sets libraries up
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return min(took)
