"""Stand-ins, on a CPU, for what text encoders use of CUDA: its graphs, and FlashAttention over packed texts."""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock, patch

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inference.engines.accelerate import cuda_graphs as served
from inference.engines.accelerate import unpadded_encoder, varlen_attention

WAITING = {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero"}  # for the device


class Graph:
    """As `torch.cuda.CUDAGraph`: runs what was captured again, on the memory and with Python's values of then. What it
    wrote is lost as the next one of its pool is replayed."""

    def __init__(self) -> None:
        self.operations: list[Callable[[], None]] = []
        self.written: list[torch.Tensor] = []
        self.pool: list[Graph] = []  # with the one that was replayed last
        self.replays = 0

    def replay(self) -> None:
        for graph in self.pool:
            graph.lose()
        self.pool[:] = [self]
        self.replays += 1
        for operation in self.operations:
            operation()

    def lose(self) -> None:
        for part in self.written:
            if part.is_floating_point():
                part.fill_(torch.nan)


class Capture(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if operation.name() in WAITING:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        options = options or {}
        answer = operation(*arguments, **options)
        read = {_memory(part) for part in _tensors((arguments, options))}
        own = [place for place, part in enumerate(_tensors(answer)) if _memory(part) not in read]

        def again() -> None:
            found = _tensors(operation(*arguments, **options))
            for place in own:
                _tensors(answer)[place].copy_(found[place])

        self.graph.operations.append(again)
        self.graph.written += [_tensors(answer)[place] for place in own]
        return answer


def _tensors(value: Any) -> list[torch.Tensor]:
    return [part for part in tree_leaves(value) if isinstance(part, torch.Tensor)]


def _memory(part: torch.Tensor) -> int:
    return int(part.untyped_storage().data_ptr())


@contextlib.contextmanager
def graphs() -> Iterator[list[Graph]]:
    """Have models seem to be on a GPU, and list the graphs that are captured of them."""
    captured: list[Graph] = []
    takes = inspect.signature(torch.cuda.graph)

    @contextlib.contextmanager
    def graph(own: Graph, *, pool: list[Graph], **options: Any) -> Iterator[None]:
        takes.bind(own, pool=pool, **options)
        own.pool = pool
        with Capture(own), patch("torch.cuda.is_current_stream_capturing", return_value=True):
            yield
        own.lose()  # nothing is computed while it is captured
        captured.append(own)

    with (
        patch.object(unpadded_encoder, "is_on_gpu", return_value=True),
        patch.object(served, "measure_fastest_s", return_value=1.0),
        patch.multiple(
            torch.cuda,
            CUDAGraph=Graph,
            graph=graph,
            graph_pool_handle=list,
            Stream=Mock,
            current_stream=Mock,
            stream=lambda _: contextlib.nullcontext(),
        ),
    ):
        yield captured


def varlen_attn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
) -> torch.Tensor:
    """As torch's, and in float32 too, so that answers can be compared to the last digits. What is of no text is no
    number."""
    if {cu_seq_q.dtype, cu_seq_k.dtype} != {torch.int32}:
        raise RuntimeError("cu_seqlens must have dtype int32")
    if cu_seq_q.diff().max() > max_q or cu_seq_k.diff().max() > max_k:
        raise RuntimeError("a text is longer than the longest")
    answer = torch.full_like(query, torch.nan)
    for start, end, first, last in zip(cu_seq_q, cu_seq_q[1:], cu_seq_k, cu_seq_k[1:], strict=False):
        parts = (query[start:end], key[first:last], value[first:last])
        queries, keys, values = (part.float().transpose(0, 1) for part in parts)
        own = functional.scaled_dot_product_attention(queries, keys, values, scale=scale)
        answer[start:end] = own.transpose(0, 1).to(query.dtype)
    return answer


@contextlib.contextmanager
def flash_attention() -> Iterator[Mock]:
    """Have models seem to be on a GPU, and count their calls of it."""
    own = patch.object(varlen_attention, "varlen_attn", autospec=True, side_effect=varlen_attn)
    on_gpu = patch.object(unpadded_encoder, "is_on_gpu", return_value=True)
    with own as attention, on_gpu, patch.object(varlen_attention, "supports_head_size", return_value=True):
        yield attention
