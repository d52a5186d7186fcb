"""Weights in the order in which oneDNN reads them, on a CPU, instead of a new order in each call.

A step that generates does little but read weights: for 16 rows of SmolLM2-135M a layer's products take 0.6 of the time
without packing, those of the vocabulary 0.45. Packed products in float32 are also computed by oneDNN and not by MKL,
which uses less than half of an AMD EPYC: 112 thousand million operations a second on one core, where oneDNN makes 260.

For each number of rows oneDNN makes code of its own, half a MiB in a millisecond for each shape of weights, and keeps
most of it for good. So only some numbers of rows are computed, and others are filled up with rows of zeros.

A product of few rows takes as long as reading its weights. If 16 bits hold the weights of a model in float32, as they
do for a checkpoint in float16 or bfloat16, FBGEMM reads them in 16 bits, and sums in float32.

On a processor with AVX2 alone, FBGEMM is faster than oneDNN for any number of rows, and so is MKL from 32 rows on.
There, weights that 16 bits hold are packed in 16 bits alone, and others only if the model generates text, by few rows.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from inference.engines.artifacts import page_release

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS = 16  # rows that the order is best for; it is as good for thousands
FEW = 16  # rows, up to which weights of 16 bits are read
SMALLEST = 2.0**-24  # least number of float16; less in bfloat16 is rounded, by up to half of it
LEAST = 2**16  # weights of a layer, below which there is nothing to win
ROWS_AT_ONCE = 1024  # rows of weights that are looked through at a time
WITH_BFLOAT16 = ("avx512_bw", "avx_ne_convert", "bf16")  # what oneDNN needs one of for bfloat16, the last on ARM
STEPS = 16  # numbers of rows from one power of two to the next: at most a sixteenth is computed in vain

Product = Callable[[torch.Tensor], Any]
Unpack = Callable[[], torch.Tensor]


class PackedLinear:
    """The packed weights of one layer, in place of its own.

    If another layer uses the same weights, these are kept, with the packed ones beside them.
    """

    def __init__(self, layer: nn.Linear, *, is_shared: bool) -> None:
        self.layer, self.is_shared, self.has_halves = layer, is_shared, _are_halves(layer.weight)
        self.unpack: Unpack | None = None

    def turn_on(self) -> None:
        if self.unpack is not None:
            return
        own = self.layer.weight
        self.layer.forward, self.unpack = self._pack(own.detach(), self.layer.bias)
        if not self.is_shared:
            own.data = own.new_empty(0)

    def turn_off(self) -> None:
        """Put the layer's own weights back. If it raises an error, the layer still computes with the packed ones."""
        if self.unpack is None:
            return
        if not self.is_shared:
            self.layer.weight.data = self.unpack()
        del self.layer.forward
        self.unpack = None

    def _pack(self, weights: torch.Tensor, bias: torch.Tensor | None) -> tuple[Product, Unpack]:
        """Return the product with these weights, packed, and what gives them back."""
        if not self.has_halves:
            return _pack_for_onednn(weights, bias)
        few, unpack = _pack_in_16_bits(weights, bias)
        if has_avx2_alone():
            return few, unpack
        many, unpack = _pack_for_onednn(weights, bias)
        return _choose_by_rows(few, many), unpack


def _pack_for_onednn(weights: torch.Tensor, bias: torch.Tensor | None) -> tuple[Product, Unpack]:
    # Private, but torch's own compiler calls them. What torch documents, `torch.utils.mkldnn.to_mkldnn`, takes 1.5
    # times as long for 16 rows.
    packed = torch.ops.mkldnn._reorder_linear_weight(weights, ROWS)

    def product(states: torch.Tensor) -> Any:
        return torch.ops.mkldnn._linear_pointwise(states, packed, bias, "none", [], "")

    return functools.partial(multiply_padded_rows, product), packed.to_dense


def _pack_in_16_bits(weights: torch.Tensor, bias: torch.Tensor | None) -> tuple[Product, Unpack]:
    packed, width = torch.ops.quantized.linear_prepack_fp16(weights, bias), len(weights)

    def product(states: torch.Tensor) -> Any:
        if not states.numel():
            return states.new_empty(*states.shape[:-1], width)
        if states.dim() == 1:
            return torch.ops.quantized.linear_dynamic_fp16(states[None], packed)[0]
        return torch.ops.quantized.linear_dynamic_fp16(states, packed)

    return product, lambda: torch.ops.quantized.linear_unpack_fp16(packed)[0]


def _choose_by_rows(few: Product, many: Product) -> Product:
    def product(states: torch.Tensor) -> Any:
        is_few = states.numel() <= FEW * states.shape[-1]
        return few(states) if is_few else many(states)

    return product


def _are_halves(weights: torch.Tensor) -> bool:
    """Return True if 16 bits hold these weights of 32 bits, and the processor is one that FBGEMM is made for."""
    if weights.dtype != torch.float32 or torch.backends.quantized.engine not in ("fbgemm", "x86"):
        return False
    rows = weights.detach().split(ROWS_AT_ONCE)
    return all(bool(((part.half().float() - part).abs() <= SMALLEST / 2).all()) for part in rows)


def multiply_padded_rows(product: Product, states: torch.Tensor) -> Any:
    """Compute a product, (..., hidden) to (..., width), for one of the numbers of rows that oneDNN has code for."""
    count = states[..., 0].numel()
    size = round_rows(count)
    if size == count:
        return product(states)
    rows = states.new_empty(size, states.shape[-1])
    rows[:count] = states.reshape(count, -1)
    rows[count:] = 0
    return product(rows)[:count].unflatten(0, states.shape[:-1])


def round_rows(rows: int) -> int:
    step = max(1, (1 << (rows - 1).bit_length()) // (2 * STEPS))
    return -(-rows // step) * step


class PackedWeights:
    """The packed weights of all layers of a model."""

    def __init__(self, layers: list[PackedLinear]) -> None:
        self.layers = layers

    def turn_on(self) -> None:
        own = [_compute_place(layer.layer.weight) for layer in self.layers if not layer.is_shared]
        with torch.inference_mode(mode=False):
            for layer in self.layers:
                layer.turn_on()
        page_release.release_pages(own)

    def turn_off(self) -> None:
        with torch.inference_mode(mode=False):
            for layer in self.layers:
                layer.turn_off()


def make_packed_weights(model: PreTrainedModel) -> PackedWeights | None:
    """Return the shortcut that packs the weights of a model's layers.

    Return None for a model on another device than the CPU, of numbers for which packing is of no use here, or without
    layers to pack.
    """
    if model.device.type != "cpu" or not _is_supported_dtype(model.dtype):
        return None
    uses = Counter(id(weights) for _, weights in model.named_parameters(remove_duplicate=False))
    layers = [
        PackedLinear(layer, is_shared=uses[id(layer.weight)] > 1)
        for layer in model.modules()
        if type(layer) is nn.Linear and _is_plain(layer)
    ]
    if has_avx2_alone() and not model.can_generate():
        layers = [layer for layer in layers if layer.has_halves]
    return PackedWeights(layers) if layers else None


def has_avx2_alone() -> bool:
    """Return True if this is an x86 processor whose widest registers have 256 bits, and torch has MKL for it."""
    return bool(torch.backends.cpu.get_cpu_capability() == "AVX2" and torch.backends.mkl.is_available())


def _is_plain(layer: nn.Linear) -> bool:
    """Return True if a layer can be packed and is worth it.

    It is neither quantized, nor on another device than the model, nor computed by another library's code in its place.
    """
    own = layer.weight
    is_here = own.device.type == "cpu" and own.numel() >= LEAST
    return type(own) is nn.Parameter and is_here and _is_supported_dtype(own.dtype) and "forward" not in vars(layer)


def _compute_place(weights: torch.Tensor) -> page_release.Place:
    return weights.data_ptr(), weights.data_ptr() + weights.numel() * weights.element_size()


def _is_supported_dtype(dtype: torch.dtype) -> bool:
    if dtype == torch.bfloat16:
        return any(torch.cpu.get_capabilities().get(name) for name in WITH_BFLOAT16)
    return dtype == torch.float32 and bool(torch.backends.mkldnn.is_available())
